"""Serving metrics: where, for how long, and what is said when it cannot be."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.errors import ConfigError
from penstock.model import NewRecord
from penstock.observe.metrics.serving import check_address, serve
from penstock.streams.memory import MemoryStream


@pytest.fixture
def streams() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=1)
    yield found
    found.close()


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def app_on(streams: MemoryStream, group: str, metrics: str | None = None) -> App:
    streams.open_topic("orders").append([NewRecord("orders", b"1")])[0].result(5)
    return App(streams, group=group, checkpoints=MemoryCheckpoints(), metrics=metrics)


def test_metrics_are_served_until_the_server_is_closed() -> None:
    with serve("127.0.0.1:0") as server:
        assert "penstock_consumer_records_total" in scrape(server.url)
        assert not server.address.endswith(":0")
    with pytest.raises(urllib.error.URLError):
        scrape(server.url)


def test_an_address_in_use_is_told_before_anything_runs(streams: MemoryStream, taken: str) -> None:
    app = app_on(streams, "taken")
    handled = []
    app.handle("orders", end="latest")(lambda value: handled.append(value))
    with pytest.raises(ConfigError, match=r"Address already in use.*another port"):
        app.run(metrics=taken)
    with pytest.raises(ConfigError, match="Address already in use"):
        app.start(metrics=taken)
    assert handled == []
    app.run()
    assert handled == [b"1"], "and the app can be run then"


@pytest.mark.parametrize("how", ["run", "App"])
def test_an_app_serves_its_metrics_while_it_runs(
    streams: MemoryStream, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    anywhere = "127.0.0.1:0"
    app = app_on(streams, f"served-by-{how}", metrics=anywhere if how == "App" else None)
    seen: dict[str, str] = {}

    @app.handle("orders", end="latest")
    def handle(value: bytes) -> None:
        url = caplog.messages[-1].rpartition(" ")[2]
        seen[url] = scrape(url)

    with caplog.at_level("INFO", "penstock.observe.metrics.serving"):
        app.run(metrics=anywhere if how == "run" else None)
    ((url, text),) = seen.items()
    assert f'penstock_consumer_rebalances_total{{change="assigned",group="served-by-{how}"' in text
    with pytest.raises(urllib.error.URLError):
        scrape(url)


@pytest.mark.parametrize("address", ["", "9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "host:-1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        serve(address)


def test_an_address_of_version_six_is_understood() -> None:
    assert check_address("[::1]:9464") == ("::1", 9464)


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match=r"cannot be served at 192\.0\.2\.1:9464"):
        serve("192.0.2.1:9464", insecure=True)


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="'no such host' is not a host name or address"):
        serve("no such host:9464")


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:9464"])
def test_metrics_that_other_machines_can_reach_are_refused_unless_insecure(address: str) -> None:
    with pytest.raises(ConfigError, match="lets every machine that can reach this one see the names of your topics"):
        serve(address)


def test_an_app_serves_metrics_to_other_machines_only_when_told_that_this_is_insecure(streams: MemoryStream) -> None:
    def run(*, insecure: bool) -> None:
        app = App(streams, group="exposed", checkpoints=MemoryCheckpoints(), insecure_endpoints=insecure)
        app.handle("orders", end="latest")(lambda value: None)
        app.run(metrics="192.0.2.1:9464")

    with pytest.raises(ConfigError, match="insecure_endpoints=True"):
        run(insecure=False)
    with pytest.raises(ConfigError, match="Cannot assign requested address"):
        run(insecure=True)
