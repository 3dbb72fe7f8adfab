"""`penstock metrics`, run as its users run it, against a real broker."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.cli.commands import metrics as command
from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.observe.metrics import registry
from tests.consuming.eventually import wait_until
from tests.observe.samples import gained
from tests.servers import Penstock

PROGRAM: Final = "import typer; from penstock.cli.commands.metrics import metrics; typer.run(metrics)"
COMMAND: Final = (sys.executable, "-c", PROGRAM)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Penstock(tmp_path_factory.mktemp("metrics")) as server:
        url = f"kafka://{server.bootstrap}"
        with penstock.connect(url) as stream:
            stream.create_topic("orders", 1)
            for number in range(5):
                stream.send("orders", b"%d" % number).result(20)
            app = penstock.App(stream, group="billing")
            app.handle("orders", end="latest")(lambda value: None)
            app.run()
            for number in range(2):
                stream.send("orders", b"%d" % number).result(20)
        yield url


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.fixture(autouse=True)
def _not_hushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the library is for the other tests of this process, too."""
    monkeypatch.setattr(command, "silence_log", lambda: None)


def test_once_prints_what_is_so_now(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    command.metrics(url=url, once=True)
    printed = capsys.readouterr().out
    assert 'penstock_topic_records{topic="orders"} 7.0' in printed
    assert 'penstock_reader_lag_records{group="billing",partition="0",topic="orders"} 2.0' in printed
    assert "penstock_stream_up 1.0" in printed


def test_it_serves_what_it_sees_until_it_is_stopped(url: str) -> None:
    listening = [*COMMAND, "--url", url, "--listen", "127.0.0.1:0", "--every", "0.5"]
    with subprocess.Popen(listening, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            told = next(line for line in running.stderr if "metrics of" in line)
            served = told.split()[-1]
            lag = 'penstock_reader_lag_records{group="billing",partition="0",topic="orders"} 2.0'
            wait_until(lambda: lag in scrape(served), timeout_s=60)
        finally:
            running.terminate()
            running.wait(20)


@pytest.mark.parametrize("buffer", ["connection", "memory", "spool"])
def test_what_is_sent_to_a_real_broker_is_counted_where_it_was_kept(url: str, buffer: str, tmp_path: Path) -> None:
    def send() -> None:
        if buffer == "connection":
            with penstock.connect(url) as stream:
                for _ in range(3):
                    stream.send("sent", b"x")
            return
        kept = f"spool:{tmp_path}" if buffer == "spool" else buffer
        with penstock.Producer(url, buffer=kept) as producer:
            for _ in range(3):
                producer.send("sent", b"x")

    for name in ("penstock_producer_sent_records_total", "penstock_producer_acknowledged_records_total"):
        assert gained(registry(), send, name, buffer=buffer) == 3


def test_an_address_that_is_none_is_told_before_the_stream_is_looked_at() -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        command.metrics(url="kafka://127.0.0.1:1", listen="9465")


def test_once_with_a_stream_that_is_away_is_an_error() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"nothing answers at 127\.0\.0\.1:1"):
        command.metrics(url="kafka://127.0.0.1:1", once=True)
