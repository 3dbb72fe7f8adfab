"""aiokafka: the asyncio client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import (
    InvalidReplicationFactorError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerFenced,
    TopicAlreadyExistsError,
    for_code,
)

from tests.clients import confluent
from tests.clients.names import fresh
from tests.servers import Server

TIMEOUT_S: Final = 20.0
QUICK: Final = {"auto_offset_reset": "earliest", "session_timeout_ms": 6000, "heartbeat_interval_ms": 200}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def eventually(what: str, condition: Callable[[], Awaitable[object]], timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        await asyncio.sleep(0)


class Clients:
    """Starts clients, and stops them when it is left."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stack = AsyncExitStack()

    async def _started(self, client: Any, stop: Callable[[], Awaitable[None]]) -> Any:
        await client.start()
        self._stack.push_async_callback(stop)
        return client

    async def producer(self, **settings: Any) -> Any:
        client = AIOKafkaProducer(bootstrap_servers=self._server.bootstrap, **settings)
        return await self._started(client, client.stop)

    async def consumer(self, *topics: str, **settings: Any) -> Any:
        client = AIOKafkaConsumer(*topics, bootstrap_servers=self._server.bootstrap, **{**QUICK, **settings})
        return await self._started(client, client.stop)

    async def admin(self) -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=self._server.bootstrap)
        return await self._started(client, client.close)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._stack.aclose()


async def read(client: Any, count: int) -> list[Any]:
    return [await asyncio.wait_for(client.getone(), TIMEOUT_S) for _ in range(count)]


def test_a_record_comes_back_as_it_was_sent(server: Server) -> None:
    topic = confluent.create_topic(server, partitions=2)

    async def test() -> None:
        async with Clients(server) as clients:
            sender = await clients.producer(acks="all")
            headers = [("trace", b"\x00\xff"), ("trace", b"again")]
            sent = await sender.send_and_wait(topic, b"value", b"key", 1, 1_700_000_000_000, headers)
            assert (sent.partition, sent.offset, sent.timestamp) == (1, 0, 1_700_000_000_000)
            (record,) = await read(await clients.consumer(topic), 1)
            assert (record.key, record.value, list(record.headers)) == (b"key", b"value", headers)
            assert (record.partition, record.offset, record.timestamp) == (1, 0, 1_700_000_000_000)

    run(test())


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_every_codec_round_trips(server: Server, codec: str | None, idempotent: bool) -> None:
    topic = confluent.create_topic(server)

    async def test() -> None:
        async with Clients(server) as clients:
            settings = {"compression_type": codec, "enable_idempotence": idempotent, "linger_ms": 5}
            sender = await clients.producer(**settings)
            values = [str(number).encode() * 50 for number in range(200)]
            await asyncio.gather(*[await sender.send(topic, value) for value in values])
            received = await read(await clients.consumer(topic), 200)
            assert [record.value for record in received] == values

    run(test())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_level_of_acknowledgement(server: Server, acks: int | str) -> None:
    topic = confluent.create_topic(server)

    async def test() -> None:
        async with Clients(server) as clients:
            await (await clients.producer(acks=acks)).send_and_wait(topic, b"x")
            (record,) = await read(await clients.consumer(topic), 1)
            assert record.value == b"x"

    run(test())


class Noted(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts the rebalances of a member."""

    def __init__(self) -> None:
        self.given: list[set[int]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.given.append({place.partition for place in assigned})


def test_two_members_share_a_group_and_the_last_one_takes_all(server: Server) -> None:
    topic, group = confluent.create_topic(server, partitions=4), fresh("group")

    async def test() -> None:
        async with Clients(server) as clients:
            first, second = await clients.consumer(group_id=group), await clients.consumer(group_id=group)
            first_noted, second_noted = Noted(), Noted()
            first.subscribe([topic], listener=first_noted)
            second.subscribe([topic], listener=second_noted)

            async def balanced() -> bool:
                await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
                return len(first.assignment()) == len(second.assignment()) == 2

            await eventually("two each", balanced)
            assert first_noted.given[-1] | second_noted.given[-1] == {0, 1, 2, 3}
            await second.stop()

            async def has_all() -> bool:
                await first.getmany(timeout_ms=50)
                return len(first.assignment()) == 4

            await eventually("the first has all", has_all)

    run(test())


def test_a_group_resumes_behind_what_it_committed(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    confluent.produce(server, topic, [b"0", b"1", b"2", b"3"])

    async def test() -> None:
        async with Clients(server) as clients:
            place = TopicPartition(topic, 0)
            first = await clients.consumer(topic, group_id=group, enable_auto_commit=False)
            assert len(await read(first, 4)) == 4
            await first.commit({place: (2, "by hand")})
            assert await first.committed(place) == 2
            await first.stop()
            second = await clients.consumer(topic, group_id=group, enable_auto_commit=False)
            assert [record.value for record in await read(second, 2)] == [b"2", b"3"]

    run(test())


def test_places_are_found_by_time_and_at_the_ends(server: Server) -> None:
    topic = confluent.create_topic(server)

    async def test() -> None:
        async with Clients(server) as clients:
            sender = await clients.producer()
            for timestamp_ms in (1000, 2000, 3000):
                await sender.send_and_wait(topic, b"x", timestamp_ms=timestamp_ms)
            place = TopicPartition(topic, 0)
            reader = await clients.consumer()
            reader.assign([place])
            assert await reader.beginning_offsets([place]) == {place: 0}
            assert await reader.end_offsets([place]) == {place: 3}
            found = (await reader.offsets_for_times({place: 1500}))[place]
            assert (found.offset, found.timestamp) == (1, 2000)
            reader.seek(place, 2)
            assert [record.offset for record in await read(reader, 1)] == [2]
            await reader.seek_to_beginning(place)
            assert [record.offset for record in await read(reader, 3)] == [0, 1, 2]

    run(test())


def test_an_offset_that_was_deleted_is_told_to_those_who_want_to_know(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"a", b"b", b"c"])
    confluent.delete_records(server, topic, 2)

    async def test() -> None:
        async with Clients(server) as clients:
            reader = await clients.consumer(auto_offset_reset="none")
            reader.assign([TopicPartition(topic, 0)])
            reader.seek(TopicPartition(topic, 0), 0)
            with pytest.raises(OffsetOutOfRangeError):
                await read(reader, 1)

    run(test())


def test_a_record_that_is_too_large_is_refused(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"max.message.bytes": "1000"})

    async def test() -> None:
        async with Clients(server) as clients:
            with pytest.raises(MessageSizeTooLargeError):
                await (await clients.producer()).send_and_wait(topic, b"x" * 5000)

    run(test())


def test_transactions_are_seen_when_they_are_committed(server: Server) -> None:
    topic, source, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")

    async def test() -> None:
        async with Clients(server) as clients:
            sender = await clients.producer(transactional_id=fresh("txn"))
            await sender.begin_transaction()
            await sender.send_and_wait(topic, b"aborted")
            await sender.abort_transaction()
            async with sender.transaction():
                await sender.send_and_wait(topic, b"committed")
                await sender.send_offsets_to_transaction({TopicPartition(source, 0): 5}, group)
            reader = await clients.consumer(topic, isolation_level="read_committed")
            assert [record.value for record in await read(reader, 1)] == [b"committed"]
            everything = await clients.consumer(topic)
            assert [record.value for record in await read(everything, 2)] == [b"aborted", b"committed"]
            member = await clients.consumer(source, group_id=group)
            assert await member.committed(TopicPartition(source, 0)) == 5

    run(test())


def test_a_new_producer_of_the_same_name_fences_the_old_one(server: Server) -> None:
    topic, name = confluent.create_topic(server), fresh("txn")

    async def test() -> None:
        async with Clients(server) as clients:
            old = await clients.producer(transactional_id=name)
            await old.begin_transaction()
            await old.send_and_wait(topic, b"from the zombie")
            new = await clients.producer(transactional_id=name)
            with pytest.raises(ProducerFenced):
                await old.commit_transaction()
            async with new.transaction():
                await new.send_and_wait(topic, b"from the heir")
            reader = await clients.consumer(topic, isolation_level="read_committed")
            assert [record.value for record in await read(reader, 1)] == [b"from the heir"]

    run(test())


def test_topics_and_groups_are_administered(server: Server) -> None:
    topic, group = fresh(), fresh("group")

    async def test() -> None:
        async with Clients(server) as clients:
            admin = await clients.admin()
            created = await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})])
            assert [row[1] for row in created.topic_errors] == [0]
            refused = await admin.create_topics([NewTopic(topic, 1, 1), NewTopic(fresh(), 1, 3)])
            codes = [for_code(row[1]) for row in refused.topic_errors]
            assert codes == [TopicAlreadyExistsError, InvalidReplicationFactorError]
            await admin.create_partitions({topic: NewPartitions(3)})

            async def has_three() -> bool:
                (described,) = await admin.describe_topics([topic])
                return len(described["partitions"]) == 3

            await eventually("three partitions", has_three)
            await (await clients.producer()).send_and_wait(topic, b"x")
            member = await clients.consumer(topic, group_id=group, enable_auto_commit=False)
            await read(member, 1)
            await member.commit()
            assert (group, "consumer") in await admin.list_consumer_groups()
            offsets = await admin.list_consumer_group_offsets(group)
            assert sum(max(0, row.offset) for row in offsets.values()) == 1
            await admin.delete_topics([topic])

            async def is_gone() -> bool:
                return topic not in await admin.list_topics()

            await eventually("the topic is gone", is_gone)

    run(test())
