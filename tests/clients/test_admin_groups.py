"""Consumer groups and their offsets, through the admin client of confluent-kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.clients import confluent
from tests.clients.confluent import TIMEOUT_S, admin
from tests.clients.group_member import Member, step_until
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server


def describe(server: Server, group: str) -> Any:
    return admin(server).describe_consumer_groups([group])[group].result(TIMEOUT_S)


def listed(server: Server, **choice: Any) -> dict[str, tuple[ConsumerGroupState, bool]]:
    result = admin(server).list_consumer_groups(**choice).result(TIMEOUT_S)
    assert result.errors == []
    return {group.group_id: (group.state, group.is_simple_consumer_group) for group in result.valid}


def offsets(server: Server, group: str, topic: str | None = None) -> dict[tuple[str, int], int]:
    places = None if topic is None else [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    asked = admin(server).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
    result = asked[group].result(TIMEOUT_S)
    return {(place.topic, place.partition): place.offset for place in result.topic_partitions}


def alter(server: Server, group: str, topic: str, offset: int) -> Any:
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
    return admin(server).alter_consumer_group_offsets([wanted])[group]


def commit(server: Server, group: str, topic: str, offset: int) -> None:
    with confluent.consumer(server, group) as reader:
        reader.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def test_a_group_is_described_with_its_members_and_what_they_read(server: Server) -> None:
    topic, group = confluent.create_topic(server, partitions=2), fresh("group")
    settings = {"client.id": "reader-one", "group.instance.id": "one", "partition.assignment.strategy": "roundrobin"}
    with Member(server, group, topic, settings) as member:
        step_until("it has both partitions", [member], lambda: member.partitions == {0, 1})
        eventually("the group is stable", lambda: describe(server, group).state == ConsumerGroupState.STABLE)
        described = describe(server, group)
        assert (described.group_id, described.partition_assignor) == (group, "roundrobin")
        assert described.type == ConsumerGroupType.CLASSIC
        assert not described.is_simple_consumer_group
        assert described.coordinator.port == server.port
        (only,) = described.members
        assert (only.client_id, only.group_instance_id) == ("reader-one", "one")
        assert only.host == "/127.0.0.1"
        assert only.member_id == member.consumer.memberid()
        assert {(place.topic, place.partition) for place in only.assignment.topic_partitions} == {
            (topic, 0),
            (topic, 1),
        }


def test_a_group_without_members_is_empty(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic) as member:
        step_until("it has the partition", [member], lambda: member.partitions == {0})
        member.consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    eventually("the group is empty", lambda: describe(server, group).state == ConsumerGroupState.EMPTY)
    assert describe(server, group).members == []


def test_groups_are_listed_with_their_state(server: Server) -> None:
    topic, stable, simple = confluent.create_topic(server), fresh("group"), fresh("group")
    commit(server, simple, topic, 1)
    with Member(server, stable, topic) as member:
        step_until("it has the partition", [member], lambda: member.partitions == {0})
        eventually("the group is stable", lambda: listed(server)[stable][0] == ConsumerGroupState.STABLE)
        assert listed(server)[stable] == (ConsumerGroupState.STABLE, False)
        assert listed(server)[simple] == (ConsumerGroupState.EMPTY, True)
        only_empty = listed(server, states={ConsumerGroupState.EMPTY})
        assert simple in only_empty
        assert stable not in only_empty
        only_classic = listed(server, types={ConsumerGroupType.CLASSIC})
        assert {simple, stable} <= set(only_classic)


def test_a_group_that_does_not_exist_is_told_apart(server: Server) -> None:
    group = fresh("group")
    assert describe(server, group).state == ConsumerGroupState.DEAD
    assert confluent.error_of(admin(server).delete_consumer_groups([group])[group]) == KafkaError.GROUP_ID_NOT_FOUND


def test_a_group_with_members_cannot_be_deleted_and_an_empty_one_can(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic) as member:
        step_until("it has the partition", [member], lambda: member.partitions == {0})
        member.consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        assert confluent.error_of(admin(server).delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    eventually("the group is empty", lambda: describe(server, group).state == ConsumerGroupState.EMPTY)
    admin(server).delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert group not in listed(server)
    assert offsets(server, group) == {}


def test_offsets_of_a_group_are_listed_all_or_as_asked_for(server: Server) -> None:
    topic, other, group = confluent.create_topic(server, partitions=2), confluent.create_topic(server), fresh("group")
    commit(server, group, topic, 4)
    commit(server, group, other, 9)
    assert offsets(server, group) == {(topic, 0): 4, (other, 0): 9}
    assert offsets(server, group, topic) == {(topic, 0): 4, (topic, 1): -1001}


def test_offsets_of_a_group_without_members_can_be_altered(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    commit(server, group, topic, 4)
    alter(server, group, topic, 2).result(TIMEOUT_S)
    assert offsets(server, group) == {(topic, 0): 2}
    new_group = fresh("group")
    alter(server, new_group, topic, 8).result(TIMEOUT_S)
    assert offsets(server, new_group) == {(topic, 0): 8}


def test_offsets_of_a_group_with_members_cannot_be_altered(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with Member(server, group, topic) as member:
        step_until("it has the partition", [member], lambda: member.partitions == {0})
        (answer,) = alter(server, group, topic, 2).result(TIMEOUT_S).topic_partitions
        assert answer.error.code() == KafkaError.UNKNOWN_MEMBER_ID
        assert offsets(server, group) == {}


def test_deleting_a_topic_deletes_its_offsets(server: Server) -> None:
    topic, other, group = confluent.create_topic(server), confluent.create_topic(server), fresh("group")
    commit(server, group, topic, 4)
    commit(server, group, other, 9)
    admin(server).delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually("only the other topic is left", lambda: offsets(server, group) == {(other, 0): 9})


def test_an_offset_beyond_the_end_or_with_long_metadata(server: Server) -> None:
    topic, group = confluent.create_topic(server), fresh("group")
    with confluent.consumer(server, group) as reader:
        # A broker does not check an offset against the log...
        (stored,) = reader.commit(offsets=[TopicPartition(topic, 0, 123456)], asynchronous=False)
        assert stored.error is None
        # ... but the metadata beside it has a limit.
        with pytest.raises(KafkaException) as refused:
            reader.commit(offsets=[TopicPartition(topic, 0, 1, metadata="x" * 5000)], asynchronous=False)
        assert confluent.code_of(refused.value) == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert offsets(server, group) == {(topic, 0): 123456}
