"""Handlers that take their time: what they have finished is saved, they can be stopped, and partitions take turns."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.app import App
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Context
from penstock.model import CheckpointKey, NewRecord, Record
from penstock.streams.memory import MemoryStream
from tests.consuming.eventually import wait_until

SLOW_S = 0.02
HANDLERS = ["value", "record", "context", "async"]


def handler_of(kind: str, handle: Callable[[bytes], None]) -> Callable[..., Any]:
    """A handler of each kind that is run in a way of its own."""

    def of_value(value: bytes) -> None:
        handle(value)

    def of_record(record: Record) -> None:
        handle(record.value or b"")

    def of_context(value: bytes, ctx: Context) -> None:
        handle(value)

    async def of_task(value: bytes) -> None:
        await asyncio.to_thread(handle, value)

    kinds: dict[str, Callable[..., Any]] = {
        "value": of_value,
        "record": of_record,
        "context": of_context,
        "async": of_task,
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", HANDLERS)
def test_what_a_slow_handler_has_finished_is_saved_while_it_goes_on(
    kind: str, streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None]
) -> None:
    fill("orders", 200)
    go_on = threading.Event()

    def handle(value: bytes) -> None:
        threading.Event().wait(SLOW_S)
        if value == b"30":
            assert go_on.wait(60)

    def saved() -> int:
        found = store.load(CheckpointKey("group", "orders", 0))
        return 0 if found is None else found.start

    app = App(streams, group="group", checkpoints=store)
    app.handle("orders")(handler_of(kind, handle))
    running = app.start()
    wait_until(lambda: saved() >= 20)  # the others that are finished are in hand together with the one that hangs
    assert saved() <= 30
    app.stop()
    go_on.set()
    running.join(60)
    assert not running.is_alive()


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_slow_handler_stops_soon_and_no_record_is_handled_twice(
    kind: str, streams: MemoryStream, store: MemoryCheckpoints, fill: Callable[..., None], consume: Callable[..., App]
) -> None:
    fill("orders", 300)
    calls: Counter[bytes] = Counter()
    delay_s = SLOW_S

    def handle(value: bytes) -> None:
        calls[value] += 1
        threading.Event().wait(delay_s)

    app = App(streams, group="group", checkpoints=store)
    app.handle("orders")(handler_of(kind, handle))
    running = app.start()
    wait_until(lambda: len(calls) >= 10)
    app.stop()
    running.join(60)
    assert not running.is_alive()
    assert len(calls) < 100
    delay_s = 0.0
    consume(handler_of(kind, handle))
    assert calls == Counter({str(number).encode(): 1 for number in range(300)})


def test_partitions_take_turns_when_their_one_worker_is_slow(store: MemoryCheckpoints) -> None:
    streams = MemoryStream(partitions=3)
    records = [NewRecord("orders", b"value", partition=number % 3) for number in range(300)]
    for receipt in streams.open_topic("orders").append(records):
        receipt.result(10)
    seen: list[int] = []

    def handle(record: Record) -> None:
        threading.Event().wait(SLOW_S)
        seen.append(record.partition)

    app = App(streams, group="group", checkpoints=store)
    app.handle("orders")(handle)
    running = app.start()
    wait_until(lambda: set(seen) == {0, 1, 2})
    app.stop()
    running.join(60)
    assert len(seen) < 100
    streams.close()
