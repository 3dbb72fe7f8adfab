"""The consumer in an event loop: `async for`, `poll_async`, `done_async`, `commit_async`, and cancelling them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming import Consumer, Retry
from penstock.errors import ConnectionClosedError
from penstock.model import CheckpointKey, NewRecord, Record
from penstock.streams.memory import MemoryStream
from tests.seeds import seed_of
from tests.servers import Penstock

Fill = Callable[..., None]
LONG_S = 30.0


async def take(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        more = await consumer.poll_async(LONG_S, limit=count - len(records))
        assert more, f"only {len(records)} of {count} came"
        records.extend(more)
    return records


def finished(store: MemoryCheckpoints) -> tuple[object, tuple[object, ...]]:
    checkpoint = store.load(CheckpointKey("g", "orders", 0))
    assert checkpoint is not None
    return checkpoint.start, checkpoint.finished


def test_a_loop_gets_every_record_while_other_tasks_go_on(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 20)

    async def main() -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async with Consumer(streams, "orders", group="g", checkpoints=store, end="latest") as consumer:
            offsets, before = [], -1
            async for record in consumer:
                assert others > before, "another task ran since the last record"
                before = others
                offsets.append(record.offset)
            assert offsets == list(range(20))
            assert consumer.has_ended
        task.cancel()

    asyncio.run(main())
    assert finished(store) == (20, ())


def test_a_waiting_poll_keeps_nothing_else_waiting_and_sees_a_record_at_once(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    streams.create_topic("orders")

    async def main() -> list[Record]:
        async with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
            polling = asyncio.create_task(consumer.poll_async())
            await asyncio.sleep(0)
            assert not polling.done()
            await asyncio.to_thread(fill, "orders", 1)
            return await polling

    assert [record.value for record in asyncio.run(main())] == [b"0"]


def test_asking_for_the_next_record_finishes_the_last_one_unless_the_loop_has_marked_it(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 4)

    async def main() -> list[int]:
        offsets = []
        retry = Retry(5, first_delay_s=0)
        async with Consumer(streams, "orders", group="g", checkpoints=store, retry=retry) as consumer:
            async for record in consumer:
                offsets.append(record.offset)
                if record.offset == 1 and offsets.count(1) == 1:
                    consumer.failed(record, ValueError("once"))
                if record.offset == 2:
                    await consumer.done_async(record)
                if sorted(set(offsets)) == [0, 1, 2, 3] and offsets.count(1) == 2:
                    break
            assert dict(await consumer.commit_async()).keys() == {0}
        return offsets

    offsets = asyncio.run(main())
    assert sorted(offsets) == [0, 1, 1, 2, 3]
    start, rest = finished(store)
    assert (start, rest) in ((offsets[-1], ((offsets[-1] + 1, 4),)), (3, ())), "only the last is not finished"


def test_a_cancelled_loop_loses_nothing_and_finishes_nothing_twice(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 10)

    async def main() -> tuple[list[int], list[int]]:
        first: list[int] = []
        third = asyncio.Event()

        async def stuck(consumer: Consumer) -> None:
            async for record in consumer:
                first.append(record.offset)
                if len(first) == 3:
                    third.set()
                    await asyncio.Event().wait()

        async with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
            task = asyncio.create_task(stuck(consumer))
            await third.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            second = []
            async for record in consumer:
                second.append(record.offset)
                if len(second) == 7:
                    await consumer.done_async(record)
                    break
        return first, second

    assert asyncio.run(main()) == ([0, 1, 2], list(range(3, 10)))
    assert finished(store) == (2, ((3, 10),))
    with Consumer(streams, "orders", group="g", checkpoints=store) as again:
        assert [record.offset for record in again.poll(LONG_S)] == [2]


def test_polls_that_are_cancelled_at_any_moment_take_no_record_away(
    streams: MemoryStream, store: MemoryCheckpoints
) -> None:
    rng = random.Random(seed_of())
    streams.create_topic("orders")
    count = 300

    def send() -> None:
        topic = streams.open_topic("orders")
        for number in range(count):
            for receipt in topic.append([NewRecord("orders", str(number).encode())]):
                receipt.result(LONG_S)

    async def main() -> list[int]:
        got: list[int] = []
        sending = asyncio.create_task(asyncio.to_thread(send))
        async with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
            while len(got) < count:
                polling = asyncio.create_task(consumer.poll_async(LONG_S, limit=rng.randint(1, 5)))
                for _ in range(rng.randint(0, 4)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    polling.cancel()
                try:
                    records = await polling
                except asyncio.CancelledError:
                    continue
                for record in records:
                    got.append(record.offset)
                    await consumer.done_async(record)
            await sending
        return got

    assert asyncio.run(main()) == list(range(count))
    assert finished(store) == (count, ())


def test_a_record_is_saved_when_done_async_returns_where_each_is_saved(
    streams: MemoryStream, store: MemoryCheckpoints, fill: Fill
) -> None:
    fill("orders", 3)

    async def main() -> None:
        async with Consumer(streams, "orders", group="g", checkpoints=store, commit_interval_s=0) as consumer:
            for record in await take(consumer, 3):
                await consumer.done_async(record)
                assert finished(store) == (record.offset + 1, ())

    asyncio.run(main())


def test_a_waiting_poll_is_woken_and_ends_when_the_consumer_is_closed(
    streams: MemoryStream, store: MemoryCheckpoints
) -> None:
    streams.create_topic("orders")

    async def main() -> None:
        async with Consumer(streams, "orders", group="g", checkpoints=store) as consumer:
            polling = asyncio.create_task(consumer.poll_async())
            await asyncio.sleep(0)
            threading.Thread(target=consumer.wakeup).start()
            assert await polling == []
            polling = asyncio.create_task(consumer.poll_async())
            await asyncio.sleep(0)
            await asyncio.to_thread(consumer.close)
            assert await polling == []
        with pytest.raises(ConnectionClosedError):
            await consumer.poll_async()

    asyncio.run(main())


def test_on_a_broker_a_second_consumer_continues_where_the_first_was_left(tmp_path: Path) -> None:
    topic, group = "orders", "billing"
    with Penstock(tmp_path) as server, penstock.connect(f"kafka://{server.bootstrap}") as stream:
        stream.create_topic(topic, 1)
        for number in range(10):
            stream.send(topic, str(number))
        stream.flush(LONG_S)

        async def some(count: int) -> list[bytes | None]:
            values: list[bytes | None] = []
            async with penstock.Consumer(stream, topic, group=group) as consumer, asyncio.timeout(LONG_S):
                async for record in consumer:
                    values.append(record.value)
                    if len(values) == count:
                        return values
            return values

        assert asyncio.run(some(5)) == [b"0", b"1", b"2", b"3", b"4"]
        assert asyncio.run(some(6)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
