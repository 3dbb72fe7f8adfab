"""A connection in an event loop: nothing else is held up while it waits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConnectionClosedError, SerdeError
from tests.clients.names import fresh
from tests.servers import Penstock


@pytest.fixture(params=["memory", "kafka", "spool"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Connection]:
    if request.param == "memory":
        made = penstock.connect(f"memory:{fresh()}")
    else:
        server: Penstock = request.getfixturevalue("server")
        spool = tmp_path / "spool" if request.param == "spool" else None
        made = penstock.connect(f"kafka://{server.bootstrap}", spool=spool)
    yield made
    made.close()


def test_a_receipt_is_awaited_and_a_record_sent_with_await(connection: penstock.Connection) -> None:
    topic = fresh()

    async def main() -> list[bytes | None]:
        async with connection as stream:
            place = await stream.send(topic, "a")
            assert (place.topic, place.offset) == (topic, 0)
            second = await stream.send_async(topic, "b", key="k", headers={"h": "x"})
            assert second.offset > place.offset
            places = await asyncio.gather(*(stream.send_async(topic, str(number)) for number in range(50)))
            assert len({place.offset for place in places if place.offset > second.offset}) == 50
            values = [record.value async for record in stream.read(topic, limit=2)]
        with pytest.raises(ConnectionClosedError):
            await stream.send_async(topic, "c")
        return values

    assert asyncio.run(main()) == [b"a", b"b"]


def test_a_receipt_that_was_settled_long_ago_is_awaited_at_once(stream: penstock.Connection, topic: str) -> None:
    receipt = stream.send(topic, "a")
    receipt.result(20)

    async def main() -> penstock.RecordMetadata:
        return await receipt

    assert asyncio.run(main()) == receipt.result()


def test_awaiting_raises_what_result_raises(stream: penstock.Connection, topic: str) -> None:
    async def main() -> None:
        with pytest.raises(penstock.DeliveryError):
            await stream.send(topic, "a", partition=7)

    asyncio.run(main())


def test_a_record_that_the_topic_does_not_carry_is_refused_before_it_is_sent(connection: penstock.Connection) -> None:
    async def main() -> None:
        with pytest.raises(SerdeError):
            await connection.send_async(penstock.Topic("t", int), "a")  # type: ignore[misc]

    asyncio.run(main())


def test_a_full_buffer_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    async def main(url: str, server: Penstock) -> None:
        async with penstock.connect(url, librdkafka={"queue.buffering.max.messages": 3}) as stream:
            await stream.send_async("t", "first")
            server.process.popen.send_signal(signal.SIGSTOP)
            try:
                tasks = [asyncio.create_task(stream.send_async("t", str(number))) for number in range(10)]
                async with asyncio.timeout(20):  # the loop turns while three wait for the broker and seven for room
                    while stream.unacknowledged < 3:  # noqa: ASYNC110 - the client has no event for it
                        await asyncio.sleep(0)
                assert stream.unacknowledged == 3
                assert not any(task.done() for task in tasks)
            finally:
                server.process.popen.send_signal(signal.SIGCONT)
            places = await asyncio.gather(*tasks)
            assert sorted(place.offset for place in places) == list(range(1, 11))

    with Penstock(tmp_path) as server:
        asyncio.run(main(f"kafka://{server.bootstrap}", server))


def test_the_time_limit_for_room_is_that_of_a_delivery(tmp_path: Path) -> None:
    async def main(url: str, server: Penstock) -> None:
        stream = penstock.connect(url, delivery_timeout_s=0.5, librdkafka={"queue.buffering.max.messages": 1})
        await stream.send_async("t", "first")
        server.process.popen.send_signal(signal.SIGSTOP)
        try:
            outcomes = await asyncio.gather(
                *(stream.send_async("t", str(number)) for number in range(3)), return_exceptions=True
            )
        finally:
            server.process.popen.send_signal(signal.SIGCONT)
        assert all(isinstance(outcome, penstock.DeliveryError) for outcome in outcomes)
        await asyncio.to_thread(stream.close)

    with Penstock(tmp_path) as server:
        asyncio.run(main(f"kafka://{server.bootstrap}", server))


def test_a_reader_that_follows_waits_without_holding_up_the_loop(connection: penstock.Connection) -> None:
    topic = fresh()
    connection.create_topic(topic)

    async def main() -> list[bytes | None]:
        reader = connection.read(topic, follow=True, limit=3)

        async def follow() -> list[bytes | None]:
            return [record.value async for record in reader]

        task = asyncio.create_task(follow())
        for number in range(3):
            await connection.send_async(topic, str(number))
        return await asyncio.wait_for(task, 20)

    assert asyncio.run(main()) == [b"0", b"1", b"2"]


def test_who_is_cancelled_while_reading_loses_no_record(connection: penstock.Connection) -> None:
    topic = fresh()
    connection.create_topic(topic)

    async def main() -> bytes | None:
        reader = connection.read(topic, follow=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.01)
        await connection.send_async(topic, "a")
        record = await asyncio.wait_for(anext(reader), 20)
        reader.close()
        return record.value

    assert asyncio.run(main()) == b"a"


def test_an_async_reader_ends_when_nothing_came_in_time(connection: penstock.Connection) -> None:
    topic = fresh()
    connection.create_topic(topic)

    async def main() -> None:
        await connection.send_async(topic, "a")
        reader = connection.read(topic, follow=True, timeout_s=0.3)
        assert [record.value async for record in reader] == [b"a"]

    asyncio.run(main())
