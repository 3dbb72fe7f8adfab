"""`/healthz` and `/readyz` of an app: what they answer, and when."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.errors import BrokerUnavailableError
from penstock.model import NewRecord
from penstock.streams.memory import MemoryStream
from penstock.testing import FaultyStream, VirtualClock
from tests.consuming.eventually import wait_until
from tests.servers import free_ports

Answer = tuple[int, list[str]]


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def streams() -> Iterator[MemoryStream]:
    found = MemoryStream(partitions=2)
    found.open_topic("orders").append([NewRecord("orders", b"1")])[0].result(5)
    yield found
    found.close()


def ask(address: str, path: str) -> Answer:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            code, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        code, body = error.code, error.read()
    told = json.loads(body)
    assert told["status"] == ("ok" if code == 200 else "unavailable")
    return code, told["problems"]


def test_one_address_has_metrics_health_and_readiness(streams: MemoryStream, address: str) -> None:
    app = App(streams, group="g", checkpoints=MemoryCheckpoints(), health=address, metrics=address)
    app.handle("orders")(lambda value: None)
    thread = app.start()
    try:
        wait_until(lambda: ask(address, "/readyz") == (200, []))
        assert ask(address, "/healthz") == (200, [])
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            assert b"penstock_consumer_records_total" in answer.read()
    finally:
        app.stop()
        thread.join(20)
    with pytest.raises(urllib.error.URLError):
        ask(address, "/healthz")


def test_an_app_is_not_ready_before_it_has_partitions_nor_while_it_stops(streams: MemoryStream, address: str) -> None:
    may_go_on, in_hand, may_end = (threading.Event() for _ in range(3))
    app = App(streams, group="g", checkpoints=MemoryCheckpoints())

    def hold(partitions: object) -> None:
        assert may_go_on.wait(20)

    @app.handle("orders", on_assigned=hold)
    def bill(value: bytes) -> None:
        in_hand.set()
        assert may_end.wait(20)

    thread = app.start(health=address)
    try:
        assert ask(address, "/readyz")[0] == 503
        may_go_on.set()
        assert in_hand.wait(20)
        assert ask(address, "/readyz")[0] == 200
        app.stop()
        assert ask(address, "/readyz") == (503, ["the app is stopping"])
        assert ask(address, "/healthz")[0] == 200, "to stop takes a while, and is no reason to be killed"
    finally:
        may_end.set()
        thread.join(20)


def test_a_stream_that_cannot_be_reached_is_no_reason_to_restart_but_not_ready(
    streams: MemoryStream, address: str
) -> None:
    faulty = FaultyStream(streams)
    app = App(faulty, group="g", checkpoints=MemoryCheckpoints())
    app.handle("orders")(lambda value: None)
    thread = app.start(health=address)
    try:
        wait_until(lambda: ask(address, "/readyz") == (200, []))
        faulty.faults.fail("span", BrokerUnavailableError("the broker is away"), times=None)
        code, problems = ask(address, "/readyz")
        assert code == 503
        assert any("the broker is away" in problem for problem in problems)
        assert ask(address, "/healthz") == (200, [])
        faulty.faults.heal()
        assert ask(address, "/readyz") == (200, [])
    finally:
        app.stop()
        thread.join(20)


def test_a_loop_that_hangs_is_told_to_be_stuck(streams: MemoryStream, address: str) -> None:
    clock = VirtualClock()
    begun, may_go_on = threading.Event(), threading.Event()
    app = App(streams, group="g", checkpoints=MemoryCheckpoints(), clock=clock)

    def hang(partitions: object) -> None:
        begun.set()
        assert may_go_on.wait(20)

    app.handle("orders", on_assigned=hang)(lambda value: None)
    thread = app.start(health=address)
    try:
        assert begun.wait(20)
        assert ask(address, "/healthz") == (200, [])
        clock.advance(61)
        code, problems = ask(address, "/healthz")
        assert code == 503
        assert "consumer loop has not run for 61 s" in problems[0]
    finally:
        may_go_on.set()
        app.stop()
        thread.join(20)
