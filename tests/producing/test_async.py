"""The producer in an event loop: nothing else is held up while it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.errors import BufferFullError, ConfigError, DeliveryError
from penstock.producing.producer import Producer
from tests.producing.held_streams import HeldStreams, refusing


def test_send_async_gives_the_place_and_raises_the_refusal() -> None:
    async def main() -> None:
        streams = HeldStreams()
        streams.verdicts.append(refusing(b"bad"))
        async with Producer(streams) as producer:
            with pytest.raises(DeliveryError):
                await producer.send_async("t", "bad")
            places = await asyncio.gather(*(producer.send_async("t", str(number)) for number in range(50)))
            assert [place.offset for place in places] == list(range(50))

    asyncio.run(main())


@pytest.mark.parametrize("flush", [None, "fsync"])
def test_a_full_buffer_does_not_hold_up_the_loop(flush: str | None, tmp_path: Path) -> None:
    async def main() -> None:
        streams = HeldStreams()
        streams.shut()
        buffer = "memory" if flush is None else f"spool:{tmp_path / 'spool'}"
        async with Producer(streams, buffer=buffer, buffer_records=3, spool_flush=flush) as producer:  # type: ignore[arg-type]
            tasks = [asyncio.create_task(producer.send_async("t", str(number))) for number in range(10)]
            for _ in range(1000):  # the loop turns while seven wait for room and three for the stream
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            streams.release()
            await asyncio.gather(*tasks)
        assert sorted(streams.values()) == [b"%d" % number for number in range(10)]  # type: ignore[type-var]

    asyncio.run(main())


def test_waiting_for_room_ends_with_a_named_error() -> None:
    async def main() -> None:
        streams = HeldStreams()
        streams.shut()
        async with Producer(streams, buffer_records=1, max_block_s=0.05) as producer:
            first = asyncio.create_task(producer.send_async("t", "a"))
            await asyncio.sleep(0)
            with pytest.raises(BufferFullError, match="buffer_records"):
                await producer.send_async("t", "b")
            streams.release()
            await first

    asyncio.run(main())


def test_a_transaction_refuses_to_wait_inside(url: str, topic: str) -> None:
    async def main() -> None:
        async with Producer(url, transactional_id=topic) as producer:
            with producer.transaction(), pytest.raises(ConfigError, match="use send"):
                await producer.send_async(topic, "x")
            assert (await producer.send_async(topic, "y")).topic == topic

    asyncio.run(main())
