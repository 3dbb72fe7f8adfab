"""confluent-kafka (librdkafka) in consumer groups of the classic protocol."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.clients import confluent
from tests.clients.group_member import Member, step_until
from tests.clients.names import fresh
from tests.servers import Server

ASSIGNORS = ["range", "roundrobin", "cooperative-sticky"]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_two_members_share_the_partitions_and_the_records(server: Server, assignor: str) -> None:
    topic, group = confluent.create_topic(server, partitions=4), fresh("group")
    settings = {"partition.assignment.strategy": assignor}
    with Member(server, group, topic, settings) as first:
        step_until("the only member has all partitions", [first], lambda: first.partitions == {0, 1, 2, 3})
        with Member(server, group, topic, settings) as second:
            both = [first, second]
            step_until("the two have two each", both, lambda: len(first.partitions) == len(second.partitions) == 2)
            assert first.partitions | second.partitions == {0, 1, 2, 3}
            if assignor == "cooperative-sticky":
                assert first.taken == [second.partitions], "a cooperative member gives up only what it loses"
            else:
                assert first.taken == [{0, 1, 2, 3}], "an eager member gives up everything first"
            for partition in range(4):
                confluent.produce(server, topic, [f"{partition}".encode()], partition=partition)
            step_until("all records came", both, lambda: len(first.received) + len(second.received) == 4)
            for member in both:
                assert {record.partition for record in member.received} == member.partitions
        step_until("the remaining member has all again", [first], lambda: first.partitions == {0, 1, 2, 3})
        assert first.errors == []


def test_a_group_resumes_behind_what_it_committed(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    confluent.produce(server, topic, [str(number).encode() for number in range(10)])
    place = TopicPartition(topic, 0)
    with confluent.consumer(server, group) as reader:
        reader.subscribe([topic])
        assert reader.committed([place], timeout=confluent.TIMEOUT_S)[0].offset == -1001
        assert len(confluent.poll_until(reader, 4)) == 4
        (stored,) = reader.commit(asynchronous=False, offsets=[TopicPartition(topic, 0, 4, metadata="done by hand")])
        assert (stored.offset, stored.error) == (4, None)
    with confluent.consumer(server, group) as reader:
        (committed,) = reader.committed([place], timeout=confluent.TIMEOUT_S)
        assert (committed.offset, committed.metadata) == (4, "done by hand")
        reader.subscribe([topic])
        assert confluent.values_of(confluent.poll_until(reader, 6)) == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_offsets_committed_automatically_are_there_after_close(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    confluent.produce(server, topic, [b"a", b"b", b"c"])
    with confluent.consumer(server, group, {"enable.auto.commit": True}) as reader:
        reader.subscribe([topic])
        assert len(confluent.poll_until(reader, 3)) == 3
    with confluent.consumer(server, group) as reader:
        (committed,) = reader.committed([TopicPartition(topic, 0)], timeout=confluent.TIMEOUT_S)
        assert committed.offset == 3


def test_a_static_member_comes_back_without_a_rebalance(server: Server) -> None:
    topic, group = confluent.create_topic(server, partitions=4), fresh("group")
    stable = Member(server, group, topic, {"group.instance.id": "stable"})
    coming = Member(server, group, topic, {"group.instance.id": "coming"})
    both = [stable, coming]
    step_until("two each", both, lambda: len(stable.partitions) == len(coming.partitions) == 2)
    before = stable.partitions, coming.partitions, len(stable.given)
    coming.leave()
    coming = Member(server, group, topic, {"group.instance.id": "coming"})
    step_until("it has its partitions again", [stable, coming], lambda: coming.partitions == before[1])
    assert (stable.partitions, len(stable.given)) == (before[0], before[2])
    coming.leave()
    stable.leave()


def test_a_static_member_that_stays_away_loses_its_place_after_the_session_timeout(server: Server) -> None:
    topic, group = confluent.create_topic(server, partitions=2), fresh("group")
    soon = {"session.timeout.ms": 2000}
    with Member(server, group, topic, {"group.instance.id": "stays", **soon}) as stays:
        leaves = Member(server, group, topic, {"group.instance.id": "leaves", **soon})
        step_until("one each", [stays, leaves], lambda: len(stays.partitions) == len(leaves.partitions) == 1)
        leaves.leave()
        step_until("the one that stays has both", [stays], lambda: stays.partitions == {0, 1})


def test_a_second_member_of_the_same_static_name_fences_the_first(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    first = Member(server, group, topic, {"group.instance.id": "only-one"})
    step_until("the first has the partition", [first], lambda: first.partitions == {0})
    with Member(server, group, topic, {"group.instance.id": "only-one"}) as second:
        step_until("the second has the partition", [first, second], lambda: second.partitions == {0})
        step_until("the first is told", [first, second], lambda: first.errors)
        assert [error.code() for error in first.errors] == [KafkaError._FATAL]
        # The client wraps the broker's error into a fatal one and leaves only its text.
        assert KafkaError(KafkaError.FENCED_INSTANCE_ID).str() in first.errors[0].str()
        first.leave()


def test_a_group_follows_a_topic_that_grows(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic, {"topic.metadata.refresh.interval.ms": 200}) as member:
        step_until("it has the one partition", [member], lambda: member.partitions == {0})
        confluent.grow_topic(server, topic, 3)
        step_until("it has all three", [member], lambda: member.partitions == {0, 1, 2})


def test_a_pattern_finds_topics_that_come_later(server: Server) -> None:
    prefix, group = fresh("pattern"), fresh("group")
    settings = {"topic.metadata.refresh.interval.ms": 200}
    with Member(server, group, f"^{prefix}-.*", settings) as member:
        member.step()
        for name in ("one", "two"):
            confluent.produce(server, f"{prefix}-{name}", [name.encode()])
        # When the second topic is found, the first may be read again: its record is not committed yet.
        step_until(
            "both topics were read", [member], lambda: {each.value for each in member.received} == {b"one", b"two"}
        )


def test_a_commit_by_a_stranger_to_a_group_with_members_is_refused(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic) as member, confluent.consumer(server, group) as stranger:
        step_until("the member has the partition", [member], lambda: member.partitions == {0})
        stranger.assign([TopicPartition(topic, 0)])
        with pytest.raises(KafkaException) as refused:
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert confluent.code_of(refused.value) == KafkaError.UNKNOWN_MEMBER_ID


def test_a_commit_without_a_group_membership_is_kept(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with confluent.consumer(server, group) as reader:
        reader.assign([TopicPartition(topic, 0)])
        reader.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    with confluent.consumer(server, group) as reader:
        (committed,) = reader.committed([TopicPartition(topic, 0)], timeout=confluent.TIMEOUT_S)
        assert committed.offset == 7


def test_a_member_that_shares_no_assignor_with_the_group_is_refused(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic, {"partition.assignment.strategy": "range"}) as member:
        step_until("the member has the partition", [member], lambda: member.partitions == {0})
        with Member(server, group, topic, {"partition.assignment.strategy": "roundrobin"}) as odd:
            step_until("the odd one is refused", [member, odd], lambda: odd.errors)
            assert odd.errors[0].code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert member.partitions == {0}


def test_a_session_timeout_outside_the_limits_is_refused(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic, {"session.timeout.ms": 1000}) as hasty:
        step_until("it is refused", [hasty], lambda: hasty.errors)
        assert hasty.errors[0].code() == KafkaError.INVALID_SESSION_TIMEOUT
