"""Metadata, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.handlers import metadata
from penstock.broker.handlers.metadata import CLUSTER_OPERATIONS, MAX_CREATED_PER_REQUEST, TOPIC_OPERATIONS
from tests.broker.handlers.stand_in import CLUSTER_ID, NODE_ID, VERSIONS, StandIn

METADATA = 3
NOT_ASKED_FOR = -(2**31)


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def found(answer: Any) -> dict[str | None, ErrorCode]:
    return {topic.name: topic.error_code for topic in answer.topics}


@pytest.mark.parametrize("version", range(VERSIONS[METADATA][0], VERSIONS[METADATA][1] + 1))
def test_every_version_says_who_leads_which_partition(broker: StandIn, version: int) -> None:
    broker.create("orders", 3)
    answer = broker.ask(METADATA, version, topics=named("orders"))
    assert [(node.node_id, node.host, node.port) for node in answer.brokers] == [(NODE_ID, "127.0.0.1", 9092)]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (ErrorCode.none, "orders")
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (NODE_ID, (NODE_ID,), (NODE_ID,))
    if version >= 1:
        assert answer.controller_id == NODE_ID
    if version >= 2:
        assert answer.cluster_id == CLUSTER_ID
    if version >= 7:
        assert {partition.leader_epoch for partition in topic.partitions} == {0}
    if version >= 10:
        assert topic.topic_id == broker.topics.id_of("orders")


def test_a_client_of_version_0_gets_all_topics_by_asking_for_none(broker: StandIn) -> None:
    broker.create("a")
    broker.create("b")
    assert set(found(broker.ask(METADATA, 0, topics=[]))) == {"a", "b"}


def test_later_clients_get_all_topics_for_null_and_none_for_none(broker: StandIn) -> None:
    broker.create("a")
    broker.create("b")
    assert set(found(broker.ask(METADATA, topics=None))) == {"a", "b"}
    assert found(broker.ask(METADATA, topics=[])) == {}


def test_an_unknown_topic_is_created_if_client_and_broker_agree(start: Callable[..., StandIn]) -> None:
    broker = start({"num.partitions": "2"})
    answer = broker.ask(METADATA, topics=named("new"), allow_auto_topic_creation=True)
    assert found(answer) == {"new": ErrorCode.none}
    assert len(answer.topics[0].partitions) == 2
    refusing = broker.ask(METADATA, topics=named("other"), allow_auto_topic_creation=False)
    assert found(refusing) == {"other": ErrorCode.unknown_topic_or_partition}
    assert broker.topics.names() == ["new"]
    unwilling = start({"auto.create.topics.enable": "false"})
    answer = unwilling.ask(METADATA, topics=named("new"), allow_auto_topic_creation=True)
    assert found(answer) == {"new": ErrorCode.unknown_topic_or_partition}


def test_clients_from_before_version_4_agree_to_creation_without_saying_so(broker: StandIn) -> None:
    assert found(broker.ask(METADATA, 3, topics=named("new"))) == {"new": ErrorCode.none}


def test_names_that_kafka_refuses_are_refused(broker: StandIn) -> None:
    broker.create("a.b")
    for may_create in (True, False):
        answer = broker.ask(METADATA, topics=named("no good", "", ".."), allow_auto_topic_creation=may_create)
        assert set(found(answer).values()) == {ErrorCode.invalid_topic_exception}
    assert found(broker.ask(METADATA, topics=named("a_b"))) == {"a_b": ErrorCode.invalid_topic_exception}
    assert broker.topics.names() == ["a.b"]


def test_the_brokers_own_topics_are_not_created_by_asking_for_them(broker: StandIn) -> None:
    answer = broker.ask(METADATA, topics=named("__consumer_offsets", "__cluster_metadata"))
    assert set(found(answer).values()) == {ErrorCode.unknown_topic_or_partition}
    broker.create("__consumer_offsets", cleanup_policy="compact")
    (topic,) = broker.ask(METADATA, topics=named("__consumer_offsets")).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.none, True)


def test_one_request_creates_a_limited_number_of_topics_and_the_next_goes_on(broker: StandIn) -> None:
    names = [f"t{number}" for number in range(MAX_CREATED_PER_REQUEST + 1)]
    first = found(broker.ask(METADATA, topics=named(*names)))
    assert list(first.values()).count(ErrorCode.none) == MAX_CREATED_PER_REQUEST
    assert first[names[-1]] is ErrorCode.unknown_topic_or_partition
    assert set(found(broker.ask(METADATA, topics=named(*names))).values()) == {ErrorCode.none}


def test_a_topic_that_is_asked_for_twice_is_answered_once(broker: StandIn) -> None:
    broker.create("a")
    assert len(broker.ask(METADATA, topics=named("a", "a")).topics) == 1


def test_topics_can_be_asked_for_by_id(broker: StandIn) -> None:
    broker.create("a")
    stranger = uuid.UUID(int=12345)
    asked = [{"name": None, "topic_id": broker.topics.id_of("a")}, {"name": None, "topic_id": stranger}]
    known, unknown = broker.ask(METADATA, topics=asked).topics
    assert (known.error_code, known.name) == (ErrorCode.none, "a")
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.unknown_topic_id, None, stranger)


def test_neither_name_nor_id_is_a_bad_request(broker: StandIn) -> None:
    asked = [{"name": None, "topic_id": None}]
    assert [topic.error_code for topic in broker.ask(METADATA, topics=asked).topics] == [ErrorCode.invalid_request]
    by_id = [{"name": None, "topic_id": uuid.UUID(int=5)}]
    assert [topic.error_code for topic in broker.ask(METADATA, 11, topics=by_id).topics] == [ErrorCode.invalid_request]


def test_what_a_client_may_do_is_said_when_it_asks(broker: StandIn) -> None:
    broker.create("a")
    quiet = broker.ask(METADATA, 10, topics=named("a", "b"), allow_auto_topic_creation=False)
    assert {topic.topic_authorized_operations for topic in quiet.topics} == {NOT_ASKED_FOR}
    assert quiet.cluster_authorized_operations == NOT_ASKED_FOR
    asking = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    told = broker.ask(METADATA, 10, topics=named("a", "b"), allow_auto_topic_creation=False, **asking)
    assert {topic.topic_authorized_operations for topic in told.topics} == {TOPIC_OPERATIONS} == {3576}
    assert told.cluster_authorized_operations == CLUSTER_OPERATIONS == 8096


def test_an_answer_that_was_kept_is_dropped_when_the_topics_change(broker: StandIn) -> None:
    broker.create("a")
    assert len(broker.ask(METADATA, topics=None).topics[0].partitions) == 1
    broker.topics.add_partitions("a", 3)
    assert len(broker.ask(METADATA, topics=None).topics[0].partitions) == 3
    first_id = broker.topics.id_of("a")
    broker.topics.delete("a")
    assert broker.ask(METADATA, topics=None).topics == ()
    broker.topics.deletion_finished("a")
    broker.create("a")
    (topic,) = broker.ask(METADATA, topics=None).topics
    assert topic.topic_id == broker.topics.id_of("a") != first_id


def test_a_deleted_topic_leaves_nothing_behind_in_memory(broker: StandIn) -> None:
    for round_number in range(5):
        broker.create(f"t{round_number}")
        broker.ask(METADATA, topics=None)
        broker.topics.delete(f"t{round_number}")
    broker.ask(METADATA, topics=None)
    assert _kept_topics(broker) == 0
    broker.create("a")
    broker.ask(METADATA, topics=None)
    assert _kept_topics(broker) == 1


def _kept_topics(broker: StandIn) -> int:
    return sum(len(encoded._known) for encoded in metadata._answers[broker.topics].by_layout.values())


def test_the_cluster_is_this_broker(broker: StandIn) -> None:
    answer = broker.ask(60, include_cluster_authorized_operations=True, endpoint_type=1)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (ErrorCode.none, CLUSTER_ID, NODE_ID)
    assert [(node.broker_id, node.port) for node in answer.brokers] == [(NODE_ID, 9092)]
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (9, ErrorCode.unsupported_endpoint_type)],
)
def test_there_are_no_controllers_to_describe(broker: StandIn, endpoint_type: int, code: ErrorCode) -> None:
    answer = broker.ask(60, endpoint_type=endpoint_type)
    assert answer.error_code is code
    assert answer.error_message


def pages(broker: StandIn, limit: int, *names: str) -> list[list[tuple[str, int]]]:
    """What a client reads that follows the cursor to the end."""
    read: list[list[tuple[str, int]]] = []
    cursor = None
    while True:
        answer = broker.ask(75, topics=named(*names), response_partition_limit=limit, cursor=cursor)
        read.append([(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions])
        if answer.next_cursor is None:
            return read
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
        assert len(read) < 100


def test_partitions_come_page_by_page_in_the_order_of_names(broker: StandIn) -> None:
    for name, count in (("c", 1), ("a", 3), ("b", 2)):
        broker.create(name, count)
    everything = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    for limit in range(1, 8):
        read = pages(broker, limit)
        assert [row for page in read for row in page] == everything
        assert {len(page) for page in read[:-1]} <= {limit}
    assert pages(broker, 2, "c", "a") == [[("a", 0), ("a", 1)], [("a", 2), ("c", 0)]]
    assert pages(broker, -1, "c") == [[("c", 0)]]


def test_a_topic_that_no_longer_fits_is_left_to_the_next_page_whole(broker: StandIn) -> None:
    broker.create("a", 2)
    broker.create("b", 2)
    answer = broker.ask(75, topics=named("a", "b", "c"), response_partition_limit=2)
    assert [topic.name for topic in answer.topics] == ["a"]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("b", 0)


def test_the_broker_limits_the_size_of_a_page(start: Callable[..., StandIn]) -> None:
    broker = start({"max.request.partition.size.limit": "2"})
    broker.create("a", 3)
    assert [len(page) for page in pages(broker, 2000)] == [2, 1]


def test_a_cursor_in_a_topic_that_was_deleted_goes_on_behind_it(broker: StandIn) -> None:
    broker.create("a", 2)
    broker.create("c", 2)
    answer = broker.ask(75, topics=[], cursor={"topic_name": "b", "partition_index": 1})
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 2)]


def test_a_cursor_that_cannot_be_is_refused(broker: StandIn) -> None:
    broker.create("a", 2)
    for cursor in ({"topic_name": "a", "partition_index": -1}, {"topic_name": "b", "partition_index": 0}):
        answer = broker.ask(75, topics=named("a"), cursor=cursor)
        assert found(answer) == {"a": ErrorCode.invalid_request}
        assert answer.next_cursor is None
    behind = broker.ask(75, topics=named("a"), cursor={"topic_name": "a", "partition_index": 9})
    assert [(topic.error_code, topic.partitions) for topic in behind.topics] == [(ErrorCode.none, ())]


def test_topics_that_do_not_exist_are_described_as_such_and_never_created(broker: StandIn) -> None:
    broker.create("a")
    answer = broker.ask(75, topics=named("a", "b", "no good"))
    assert found(answer) == {
        "a": ErrorCode.none,
        "b": ErrorCode.unknown_topic_or_partition,
        "no good": ErrorCode.invalid_topic_exception,
    }
    assert broker.topics.names() == ["a"]


def test_a_topic_is_created_once_the_one_that_had_its_name_is_forgotten(broker: StandIn) -> None:
    """Its groups would be read from the old place. Clients ask again for what has no leader yet."""
    broker.former.add("a")
    (topic,) = broker.ask(METADATA, topics=[{"name": "a"}]).topics
    assert topic.error_code is ErrorCode.leader_not_available
    assert broker.groups.forgotten == ["a"]
    (topic,) = broker.ask(METADATA, topics=[{"name": "a"}]).topics
    assert topic.error_code is ErrorCode.none
