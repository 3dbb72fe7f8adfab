"""Records that were sent with a delay: when they are handled, what waits for them, and what a restart makes of it."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Consumer, Context, Retry
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.queue.queue_consumer import QueueConsumer
from penstock.errors import ConfigError
from penstock.model import DELIVER_AT, CheckpointKey, NewRecord
from penstock.model.clock import SystemClock
from penstock.streams.memory import MemoryStream
from penstock.testing import VirtualClock
from tests.consuming.eventually import wait_until

HOUR_S = 3600.0


class Clock(SystemClock):
    """Its wall clock is moved by hand. The other one is not, so that nobody is taken for dead."""

    def __init__(self) -> None:
        self._moved_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self._moved_ms

    def advance(self, duration_s: float) -> None:
        self._moved_ms += round(duration_s * 1000)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock | VirtualClock:
    """Who shares records puts one aside until some time has passed on the other clock, and has no lease."""
    options = getattr(request.node, "callspec", None)
    is_shared = options is not None and options.params.get("options", {}).get("shared")
    return VirtualClock(wall_ms=time.time_ns() // 1_000_000) if is_shared else Clock()


class Running:
    """An app in a thread, and what its handler has got so far."""

    def __init__(
        self, streams: MemoryStream, store: MemoryCheckpoints, clock: Clock | VirtualClock, **options: Any
    ) -> None:
        self._clock = clock
        self.handled: list[bytes] = []
        self.attempts: list[int] = []
        self.app = App(streams, group="g", checkpoints=store, clock=clock)
        fails = options.pop("fails", 0)

        @self.app.handle("orders", **options)
        def handle(value: bytes, ctx: Context) -> None:
            self.attempts.append(ctx.attempt)
            if len(self.attempts) <= fails:
                raise ValueError("not yet")
            self.handled.append(value)

        self._thread = self.app.start()

    def stop(self) -> None:
        self.app.stop()
        while self._thread.is_alive():  # who waits on the clock finds out when it has waited
            self._clock.advance(0.3)
            self._thread.join(0.05)

    @property
    def consumer(self) -> HandlerConsumer | QueueConsumer:
        wait_until(lambda: self.app.consumers)
        return self.app.consumers[0]

    def has(self, *values: bytes) -> None:
        wait_until(lambda: len(self.handled) >= len(values))
        assert sorted(self.handled) == sorted(values)


@pytest.fixture
def running(
    streams: MemoryStream, store: MemoryCheckpoints, clock: Clock | VirtualClock
) -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def begin(**options: Any) -> Running:
        begun.append(Running(streams, store, clock, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


Begin = Callable[..., Running]
ALL = [
    {"order": "none"},
    {"order": "key"},
    {"order": "partition"},
    {"order": "none", "shared": True},
    {"order": "none", "guarantee": "at-most-once"},
    {"order": "partition", "guarantee": "at-most-once"},
]


@pytest.mark.parametrize("options", ALL)
def test_a_record_is_handled_when_it_is_due_and_not_before(
    streams: MemoryStream, clock: Clock | VirtualClock, running: Begin, options: dict[str, Any]
) -> None:
    streams.send("orders", b"later", key="ada", delay_s=HOUR_S)
    streams.send("other", b"", key="ada")
    begun = running(**options)
    streams.send("orders", b"now", key="bob", partition=0)
    if options["order"] != "partition":
        begun.has(b"now")
    clock.advance(HOUR_S - 60)
    assert b"later" not in begun.handled
    clock.advance(61)
    if options.get("shared"):
        clock.advance(60)  # members look at what they have put aside now and then
    begun.has(b"now", b"later")
    assert begun.attempts == [1, 1], "to wait is no attempt"


@pytest.mark.parametrize(("order", "first"), [("none", [b"b", b"c"]), ("key", [b"c"]), ("partition", [])])
def test_what_must_not_overtake_it_waits_with_it(
    streams: MemoryStream, clock: Clock | VirtualClock, running: Begin, order: str, first: list[bytes]
) -> None:
    streams.send("orders", b"a", key="ada", delay_s=HOUR_S)
    streams.send("orders", b"b", key="ada")
    streams.send("orders", b"c", key="bob")
    begun = running(order=order)
    begun.has(*first)
    clock.advance(1)
    assert sorted(begun.handled) == first
    clock.advance(HOUR_S)
    begun.has(b"a", b"b", b"c")
    if order != "none":
        assert begun.handled.index(b"a") < begun.handled.index(b"b")


@pytest.mark.parametrize("options", ALL)
def test_a_restart_neither_loses_nor_hastens_it(
    streams: MemoryStream, clock: Clock | VirtualClock, running: Begin, options: dict[str, Any]
) -> None:
    streams.send("orders", b"later", delay_s=HOUR_S)
    streams.send("orders", b"last")
    for _ in range(2):
        begun = running(**options)
        if options["order"] != "partition" and _ == 0:
            wait_until(lambda begun=begun: b"last" in begun.handled)  # type: ignore[misc]
        begun.stop()
        assert b"later" not in begun.handled
    clock.advance(HOUR_S + 60)
    begun = running(**options)

    def is_handled() -> bool:
        clock.advance(5)  # who shares records looks at what was put aside some time after it has first seen it
        return b"later" in begun.handled

    wait_until(is_handled)
    wait_until(lambda: begun.handled == ([b"later", b"last"] if options["order"] == "partition" else [b"later"]))


def test_one_that_fails_when_it_is_due_is_tried_again(
    streams: MemoryStream, clock: Clock | VirtualClock, running: Begin
) -> None:
    streams.send("orders", b"later", delay_s=HOUR_S)
    begun = running(order="none", retry=Retry(3, first_delay_s=0), fails=1)
    clock.advance(HOUR_S)
    begun.has(b"later")
    assert begun.attempts == [1, 2]


def test_delays_of_one_key_are_held_one_behind_the_other(
    streams: MemoryStream, clock: Clock | VirtualClock, running: Begin
) -> None:
    streams.send("orders", b"a", key="ada", delay_s=10)
    streams.send("orders", b"b", key="ada", delay_s=5)
    streams.send("orders", b"c", key="ada", delay_s=60)
    streams.send("orders", b"d", key="ada")
    begun = running(order="key")
    clock.advance(6)
    assert begun.handled == []
    clock.advance(5)
    begun.has(b"a", b"b")
    clock.advance(60)
    begun.has(b"a", b"b", b"c", b"d")
    assert begun.handled == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_window_full_of_delayed_records_pauses_its_partition_and_no_other(
    streams: MemoryStream,
    store: MemoryCheckpoints,
    clock: Clock | VirtualClock,
    running: Begin,
    partitions: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams.create_topic("orders", partitions)
    for number in range(200):
        streams.send("orders", str(number), partition=0, delay_s=HOUR_S + number)
    begun = running(order="none", in_flight=100, partition_in_flight=50, chunk=10)
    for number in range(200, 400):
        streams.send("orders", str(number), partition=partitions - 1)
    if partitions == 2:
        begun.has(*(str(number).encode() for number in range(200, 400)))
    consumer = begun.consumer
    wait_until(lambda: any("records are delayed" in problem for problem in consumer.health().problems))
    wait_until(lambda: "records are delayed; no more are read until one is due" in caplog.text)
    for _ in range(20):  # as some are due, more are read
        clock.advance(HOUR_S / 10)
    wait_until(lambda: len(begun.handled) == 400)
    assert not consumer.health().problems


def test_only_delayed_records_are_no_stall(streams: MemoryStream, clock: Clock | VirtualClock, running: Begin) -> None:
    streams.send("orders", b"later", delay_s=HOUR_S)
    begun = running(order="none")
    consumer = begun.consumer
    wait_until(lambda: any(each.in_flight for each in consumer.health().partitions))
    clock.advance(600)
    assert consumer.health().problems == ()


def test_at_most_once_commits_it_when_it_is_due(
    streams: MemoryStream, store: MemoryCheckpoints, clock: Clock | VirtualClock, running: Begin
) -> None:
    streams.send("orders", b"later", delay_s=HOUR_S)
    begun = running(order="none", guarantee="at-most-once")
    streams.send("orders", b"now")
    begun.has(b"now")
    begun.stop()
    checkpoint = store.load(CheckpointKey("g", "orders", 0))
    assert checkpoint is not None
    assert (checkpoint.start, checkpoint.finished) == (0, ((1, 2),))


def test_exactly_once_holds_over_a_restart_while_records_wait(
    streams: MemoryStream, clock: Clock, tmp_path: Path
) -> None:
    database = tmp_path / "orders.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE effects (value INT)")
    for number in range(20):
        streams.send("orders", str(number), delay_s=HOUR_S if number % 2 else None)

    def effects() -> list[int]:
        with sqlite3.connect(database) as db:
            return [value for (value,) in db.execute("SELECT value FROM effects ORDER BY value")]

    for expected in (list(range(0, 20, 2)), list(range(20))):
        app = App(streams, group="g", checkpoints=f"sqlite:{database}", clock=clock)

        @app.handle("orders", order="none", guarantee="exactly-once")
        def insert(value: bytes, ctx: Context) -> None:
            with ctx.transaction() as db:
                db.execute("INSERT INTO effects VALUES (?)", (int(value),))

        thread = app.start()
        wait_until(lambda expected=expected: effects() == expected)  # type: ignore[misc]
        app.stop()
        thread.join(20)
        clock.advance(HOUR_S)
    assert effects() == list(range(20))


def test_the_consumer_that_is_asked_holds_it_as_well(streams: MemoryStream, clock: Clock | VirtualClock) -> None:
    streams.send("orders", b"later", delay_s=HOUR_S)
    streams.send("orders", b"now")
    with Consumer(streams, "orders", group="g", checkpoints=MemoryCheckpoints(), clock=clock) as consumer:
        (record,) = consumer.poll(20)
        assert record.value == b"now"
        clock.advance(HOUR_S + 1)
        (record,) = consumer.poll(20)
        assert record.value == b"later"
        consumer.done(record)


def test_an_output_may_be_delayed(streams: MemoryStream, clock: Clock | VirtualClock, store: MemoryCheckpoints) -> None:
    streams.send("orders", b"x")
    app = App(streams, group="g", checkpoints=store)
    reminders = penstock.Topic("reminders", str)
    app.handle("orders", end="latest")(lambda value, ctx: ctx.send(reminders, "pay!", delay_s=60))
    app.run()
    (record,) = streams.read("reminders")
    assert [name for name, _ in record.headers] == [DELIVER_AT]


@dataclass
class Order:
    cents: int


@pytest.mark.parametrize("topic", ["orders", penstock.Topic("orders", Order)])
def test_the_header_says_when_and_a_plain_reader_sees_it_at_once(topic: str | penstock.Topic[Any]) -> None:
    clock = VirtualClock(wall_ms=1_800_000_000_000)
    with MemoryStream(clock=clock) as streams:
        streams.send(topic, Order(1), headers={"h": "x", DELIVER_AT: "1"}, delay_s=1.5)
        streams.send(topic, Order(2), delay_s=0)
        first, second = streams.read("orders")
    assert first.headers == (("h", b"x"), (DELIVER_AT, b"1800000001500"))
    assert second.headers == ()


@pytest.mark.parametrize("delay_s", [-1, math.nan, math.inf, 1e12, True, "5", 400 * 86_400])
def test_a_delay_that_is_none_is_refused(streams: MemoryStream, delay_s: Any) -> None:
    with pytest.raises(ConfigError, match="delay_s="):
        streams.send("orders", b"x", delay_s=delay_s)
    assert streams.topics() == []


@pytest.mark.parametrize("content", [b"", b"soon", b"-5", b"9" * 16, None, "٣".encode()])
def test_a_header_that_we_did_not_write_delays_nothing(
    streams: MemoryStream, running: Begin, content: bytes | None
) -> None:
    streams.open_topic("orders").append([NewRecord("orders", b"x", headers=((DELIVER_AT, content),))])
    running(order="partition").has(b"x")


def test_on_a_real_log_a_delay_passes_by_itself(tmp_path: Any) -> None:
    with penstock.connect(f"log:{tmp_path}/data", exit_when_idle_s=1) as stream:
        stream.create_topic("orders", 1)
        handled: list[tuple[bytes, float]] = []
        app = App(stream, group="g")

        @app.handle("orders", order="none")
        def handle(value: bytes, ctx: Context) -> None:
            handled.append((value, time.time()))

        thread = app.start()
        stream.send("orders", b"first").result(20)
        wait_until(lambda: handled)  # from here on, a record that is not delayed is handled well within the delay
        sent_s = time.time()
        stream.send("orders", b"later", delay_s=4.0).result(20)
        stream.send("orders", b"now").result(20)
        wait_until(lambda: len(handled) == 3, 30)
        app.stop()
        thread.join(20)
    assert [value for value, _ in handled] == [b"first", b"now", b"later"]
    assert handled[2][1] - sent_s >= 3.9
