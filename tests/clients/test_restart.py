"""Clients that are at work while the broker is killed and started again go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.clients import confluent
from tests.clients.group_member import Member, step_until
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock

COMMITTED = {"isolation.level": "read_committed"}
T = confluent.TIMEOUT_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Penstock]:
    """A broker of the test's own, that it may kill."""
    with Penstock(tmp_path, "--config", "group.initial.rebalance.delay.ms=0") as penstock:
        yield penstock


def test_an_idempotent_producer_loses_and_repeats_nothing(server: Penstock) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server, {"enable.idempotence": True, "batch.num.messages": 10})
    errors: list[KafkaError] = []
    delivered = 0

    def note(error: KafkaError | None, _: object) -> None:
        nonlocal delivered
        delivered += 1
        if error is not None:
            errors.append(error)

    values = [str(number).encode() for number in range(3000)]
    for number, value in enumerate(values):
        sender.produce(topic, value, partition=0, on_delivery=note)
        sender.poll(0)
        if number in (1000, 2000):
            server.kill()
            server.restart()
    assert sender.flush(60) == 0
    assert (delivered, errors) == (3000, [])
    assert confluent.values_of(confluent.read_to_end(server, topic)) == values


def test_a_group_goes_on_behind_its_commits(server: Penstock) -> None:
    topic, group = confluent.create_topic(server, partitions=2), fresh("group")
    with Member(server, group, topic) as first, Member(server, group, topic) as second:
        both = [first, second]
        step_until("one each", both, lambda: len(first.partitions) == len(second.partitions) == 1)
        for partition in range(2):
            confluent.produce(server, topic, [b"before"], partition=partition)
        step_until("both have read", both, lambda: len(first.received) == len(second.received) == 1)
        for member in both:
            member.consumer.commit(asynchronous=False)
        server.kill()
        server.restart()
        for partition in range(2):
            confluent.produce(server, topic, [b"after"], partition=partition)
        step_until("both have read on", both, lambda: len(first.received) == len(second.received) == 2)
        assert confluent.values_of(first.received) == confluent.values_of(second.received) == [b"before", b"after"]
    with confluent.consumer(server, group) as reader:
        places = [TopicPartition(topic, partition) for partition in range(2)]
        assert [place.offset for place in reader.committed(places, timeout=T)] == [1, 1]


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_an_open_transaction_can_still_be_ended(server: Penstock, ending: str) -> None:
    topic, source, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")
    sender = confluent.producer(server, {"transactional.id": fresh("txn")})
    sender.init_transactions(T)
    with confluent.consumer(server, group) as reader:
        sender.begin_transaction()
        sender.produce(topic, b"before", partition=0)
        sender.send_offsets_to_transaction([TopicPartition(source, 0, 5)], reader.consumer_group_metadata(), T)
        assert sender.flush(T) == 0
        server.kill()
        server.restart()
        sender.produce(topic, b"after", partition=0)
        if ending == "commit":
            sender.commit_transaction(T)
        else:
            sender.abort_transaction(T)
        committed = reader.committed([TopicPartition(source, 0)], timeout=T)[0].offset
    assert committed == (5 if ending == "commit" else -1001)
    expected = [b"before", b"after"] if ending == "commit" else []
    confluent.produce(server, topic, [b"behind"])

    def seen() -> list[bytes | None]:
        return confluent.values_of(confluent.read_to_end(server, topic, settings=COMMITTED))

    eventually("all that counts is seen", lambda: seen() == [*expected, b"behind"])


def test_a_topic_keeps_its_id_its_settings_and_its_beginning(server: Penstock) -> None:
    topic = confluent.create_topic(server, partitions=2, settings={"retention.ms": "3600000"})
    confluent.produce(server, topic, [b"a", b"b", b"c"])
    confluent.delete_records(server, topic, 2)
    before = confluent.described(server, topic)
    server.kill()
    server.restart()
    assert confluent.described(server, topic) == before
    with confluent.consumer(server) as reader:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=T) == (2, 3)


def test_a_broker_that_is_terminated_ends_by_itself_and_in_order(server: Penstock) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"a"])
    with confluent.consumer(server) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert len(confluent.poll_until(reader, 1)) == 1
        # The reader is connected, and waits in a long poll.
        assert server.terminate() == 0
        server.restart()
        confluent.produce(server, topic, [b"b"])
        assert confluent.values_of(confluent.poll_until(reader, 1)) == [b"b"]
