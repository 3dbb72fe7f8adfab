"""confluent-kafka (librdkafka) in transactions."""

from __future__ import annotations

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.clients import confluent
from tests.clients.group_member import Member, step_until
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server

COMMITTED = {"isolation.level": "read_committed"}
UNCOMMITTED = {"isolation.level": "read_uncommitted"}
T = confluent.TIMEOUT_S


def transactional(server: Server, name: str | None = None, timeout_ms: int = 60_000) -> Producer:
    settings = {"transactional.id": name or fresh("txn"), "transaction.timeout.ms": timeout_ms}
    sender = confluent.producer(server, settings)
    sender.init_transactions(T)
    return sender


def send(sender: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        sender.produce(topic, value, partition=partition)
    assert sender.flush(T) == 0


def visible(server: Server, topic: str, settings: dict[str, str]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in confluent.read_to_end(server, topic, settings=settings)]


def eventually_committed(server: Server, topic: str, expected: list[tuple[int, bytes | None]]) -> None:
    """A broker may answer the commit before the markers stand in the partitions; what is seen until then is nothing."""
    eventually(f"{expected} can be seen", lambda: visible(server, topic, COMMITTED) == expected)


def eventually_ends(server: Server, topic: str, end: int, partition: int = 0) -> None:
    latest = OffsetSpec.latest()
    eventually(f"the log ends at {end}", lambda: confluent.list_offset(server, topic, latest, partition) == end)


def committed_offset(server: Server, group: str, topic: str) -> int:
    with confluent.consumer(server, group) as reader:
        return reader.committed([TopicPartition(topic, 0)], timeout=T)[0].offset


def test_a_transaction_is_seen_whole_once_it_is_committed(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = transactional(server)
    sender.begin_transaction()
    send(sender, topic, b"a", b"b")
    assert visible(server, topic, COMMITTED) == []
    assert visible(server, topic, UNCOMMITTED) == [(0, b"a"), (1, b"b")]
    sender.commit_transaction(T)
    eventually_committed(server, topic, [(0, b"a"), (1, b"b")])
    # The marker of the commit takes an offset of its own.
    eventually_ends(server, topic, 3)
    assert confluent.produce(server, topic, [b"after"]) == [3]


def test_an_aborted_transaction_is_seen_only_by_those_who_ask_for_everything(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = transactional(server)
    sender.begin_transaction()
    send(sender, topic, b"aborted")
    sender.abort_transaction(T)
    sender.begin_transaction()
    send(sender, topic, b"kept")
    sender.commit_transaction(T)
    eventually_committed(server, topic, [(2, b"kept")])
    assert visible(server, topic, UNCOMMITTED) == [(0, b"aborted"), (2, b"kept")]


def test_many_aborted_and_committed_transactions_interleave(server: Server) -> None:
    topic = confluent.create_topic(server)
    first, second = transactional(server), transactional(server)
    for number in range(5):
        first.begin_transaction()
        second.begin_transaction()
        send(first, topic, f"first {number}".encode())
        send(second, topic, f"second {number}".encode())
        if number % 2:
            first.abort_transaction(T)
            second.commit_transaction(T)
        else:
            second.abort_transaction(T)
            first.commit_transaction(T)
        eventually_ends(server, topic, 4 * (number + 1))
    kept = [(0, b"first 0"), (5, b"second 1"), (8, b"first 2"), (13, b"second 3"), (16, b"first 4")]
    assert visible(server, topic, COMMITTED) == kept
    assert [offset for offset, _ in visible(server, topic, UNCOMMITTED)] == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17]


def test_an_open_transaction_holds_back_what_was_written_behind_it(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"before"])
    sender = transactional(server)
    sender.begin_transaction()
    send(sender, topic, b"open")
    confluent.produce(server, topic, [b"behind"])
    assert visible(server, topic, COMMITTED) == [(0, b"before")]
    latest = OffsetSpec.latest()
    assert confluent.list_offset(server, topic, latest, isolation=IsolationLevel.READ_COMMITTED) == 1
    assert confluent.list_offset(server, topic, latest, isolation=IsolationLevel.READ_UNCOMMITTED) == 3
    sender.abort_transaction(T)
    eventually_committed(server, topic, [(0, b"before"), (2, b"behind")])
    assert confluent.list_offset(server, topic, latest, isolation=IsolationLevel.READ_COMMITTED) == 4


def test_a_transaction_spans_topics_and_partitions(server: Server) -> None:
    one, two = confluent.create_topic(server, partitions=3), confluent.create_topic(server)
    sender = transactional(server)
    for number, end in enumerate([sender.commit_transaction, sender.abort_transaction]):
        sender.begin_transaction()
        for partition in range(3):
            send(sender, one, f"{number} {partition}".encode(), partition=partition)
        send(sender, two, f"{number}".encode())
        end(T)
    for topic, partition in ((one, 0), (one, 1), (one, 2), (two, 0)):
        eventually_ends(server, topic, 4, partition)
    received = confluent.read_to_end(server, one, range(3), COMMITTED)
    assert [(record.partition, record.value) for record in received] == [(0, b"0 0"), (1, b"0 1"), (2, b"0 2")]
    assert visible(server, two, COMMITTED) == [(0, b"0")]


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_offsets_of_the_input_move_with_the_output_or_not_at_all(server: Server, ending: str) -> None:
    source, sink, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")
    confluent.produce(server, source, [b"1", b"2", b"3"])
    sender = transactional(server)
    with confluent.consumer(server, group, COMMITTED) as reader:
        reader.subscribe([source])
        records = confluent.poll_until(reader, 3)
        sender.begin_transaction()
        send(sender, sink, *(b"doubled " + (record.value or b"") for record in records))
        positions = [TopicPartition(source, 0, 3)]
        sender.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), T)
        if ending == "commit":
            sender.commit_transaction(T)
        else:
            sender.abort_transaction(T)
    doubled = [b"doubled 1", b"doubled 2", b"doubled 3"]
    eventually_ends(server, sink, 4)
    assert [value for _, value in visible(server, sink, COMMITTED)] == (doubled if ending == "commit" else [])
    assert committed_offset(server, group, source) == (3 if ending == "commit" else -1001)


def test_a_new_producer_of_the_same_name_fences_the_old_one(server: Server) -> None:
    topic, name = confluent.create_topic(server), fresh("txn")
    old = transactional(server, name)
    old.begin_transaction()
    send(old, topic, b"from the zombie")
    new = transactional(server, name)
    # Starting the new one has aborted what the old one left open.
    assert visible(server, topic, COMMITTED) == []
    new.begin_transaction()
    send(new, topic, b"from the heir")
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(T)
    assert confluent.code_of(fenced.value) == KafkaError._FENCED
    assert fenced.value.args[0].fatal()
    new.commit_transaction(T)
    eventually_committed(server, topic, [(2, b"from the heir")])


def test_a_fenced_producer_cannot_write(server: Server) -> None:
    topic, name = confluent.create_topic(server), fresh("txn")
    old = transactional(server, name)
    new = transactional(server, name)
    old.begin_transaction()
    old.produce(topic, b"too late", partition=0)
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(T)
    assert confluent.code_of(fenced.value) == KafkaError._FENCED
    assert visible(server, topic, UNCOMMITTED) == []
    new.begin_transaction()
    send(new, topic, b"in time")
    new.commit_transaction(T)
    eventually_committed(server, topic, [(0, b"in time")])


def test_a_transaction_left_open_is_aborted_after_its_timeout(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = transactional(server, timeout_ms=1000)
    sender.begin_transaction()
    send(sender, topic, b"abandoned")
    confluent.produce(server, topic, [b"behind"])
    eventually("what waits behind is seen", lambda: visible(server, topic, COMMITTED) == [(1, b"behind")])
    with pytest.raises(KafkaException) as refused:
        sender.commit_transaction(T)
    assert confluent.code_of(refused.value) == KafkaError._FENCED


def test_a_timeout_longer_than_the_broker_allows_is_refused(server: Server) -> None:
    with pytest.raises(KafkaException) as refused:
        transactional(server, timeout_ms=2_000_000)
    assert confluent.code_of(refused.value) == KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_offsets_of_a_member_that_was_replaced_are_refused(server: Server) -> None:
    source, group = confluent.create_topic(server, partitions=2), fresh("group")
    sender = transactional(server)
    with Member(server, group, source) as member:
        step_until("it has both partitions", [member], lambda: member.partitions == {0, 1})
        stale = member.consumer.consumer_group_metadata()
        with Member(server, group, source) as second:
            step_until("they have one each", [member, second], lambda: len(second.partitions) == 1)
            sender.begin_transaction()
            with pytest.raises(KafkaException) as refused:
                sender.send_offsets_to_transaction([TopicPartition(source, 0, 1)], stale, T)
            assert confluent.code_of(refused.value) == KafkaError.ILLEGAL_GENERATION
            assert refused.value.args[0].txn_requires_abort()
            sender.abort_transaction(T)


def test_an_empty_transaction_writes_nothing(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = transactional(server)
    for end in (sender.commit_transaction, sender.abort_transaction):
        sender.begin_transaction()
        end(T)
    assert confluent.produce(server, topic, [b"first"]) == [0]
