"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.handlers.stand_in import VERSIONS, StandIn
from tests.log.batches import TRANSACTIONAL

LIST, EPOCH_END = 2, 23
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
CONSUMER, FOLLOWER = -1, 2


def place(broker: StandIn, timestamp: int, version: int | None = None, /, **fields: Any) -> Any:
    """What is answered for partition 0 of topic a."""
    wanted = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": fields.pop("epoch", -1)}
    asked = {"replica_id": CONSUMER, "topics": [{"name": "a", "partitions": [wanted]}], **fields}
    (topic,) = broker.ask(LIST, version, **asked).topics
    (partition,) = topic.partitions
    return partition


def offset(broker: StandIn, timestamp: int, version: int | None = None, /, **fields: Any) -> int:
    partition = place(broker, timestamp, version, **fields)
    assert partition.error_code is ErrorCode.none
    return int(partition.offset)


@pytest.mark.parametrize("version", range(VERSIONS[LIST][0], VERSIONS[LIST][1] + 1))
def test_every_version_finds_the_beginning_the_end_and_a_time(broker: StandIn, version: int) -> None:
    broker.create("a")
    broker.append("a", 5)
    broker.topics.get("a").partitions[0].delete_records(2)  # type: ignore[union-attr]
    assert offset(broker, EARLIEST, version) == 2
    assert offset(broker, LATEST, version) == 5
    found = place(broker, 1003, version)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, 3, 1003)
    if version >= 4:
        assert found.leader_epoch == 0
        assert place(broker, LATEST, version).leader_epoch == 0


def test_a_time_after_the_last_record_finds_nothing(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 5)
    found = place(broker, 1005)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (ErrorCode.none, -1, -1, -1)


def test_an_empty_partition_begins_and_ends_at_0(broker: StandIn) -> None:
    broker.create("a")
    assert (offset(broker, EARLIEST), offset(broker, LATEST)) == (0, 0)
    assert (offset(broker, MAX_TIMESTAMP), offset(broker, 0)) == (-1, -1)


def test_the_record_with_the_largest_timestamp_is_found(broker: StandIn) -> None:
    broker.create("a")
    for timestamp_ms in (3000, 9000, 4000):
        broker.append("a", 2, timestamp_ms=timestamp_ms)
    found = place(broker, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (2, 9000)


def test_nothing_is_tiered(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 3)
    assert offset(broker, EARLIEST_LOCAL) == 0
    assert offset(broker, LATEST_TIERED) == -1
    assert offset(broker, EARLIEST_PENDING) == -1


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11), (-7, 99)],
)
def test_a_special_timestamp_is_unknown_to_versions_before_it(broker: StandIn, timestamp: int, since: int) -> None:
    broker.create("a")
    for version in range(VERSIONS[LIST][0], VERSIONS[LIST][1] + 1):
        code = place(broker, timestamp, version).error_code
        assert code is (ErrorCode.none if version >= since else ErrorCode.unsupported_version)


def test_a_reader_of_committed_records_sees_no_further_than_the_first_open_transaction(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 2)
    broker.append("a", 3, timestamp_ms=5000, flags=TRANSACTIONAL, producer_id=1)
    assert (offset(broker, LATEST), offset(broker, 5000), offset(broker, MAX_TIMESTAMP)) == (5, 2, 2)
    committed = {"isolation_level": 1}
    assert offset(broker, LATEST, **committed) == 2
    assert offset(broker, 5000, **committed) == -1
    assert offset(broker, MAX_TIMESTAMP, **committed) == -1
    assert offset(broker, 1001, **committed) == 1


def test_a_consumer_sees_no_further_than_the_high_watermark(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 3)
    log = broker.topics.get("a").partitions[0]  # type: ignore[union-attr]
    log.high_watermark = 1
    assert offset(broker, LATEST) == 1
    assert offset(broker, 1002) == -1
    assert offset(broker, LATEST, replica_id=FOLLOWER) == 3


def test_a_client_with_another_idea_of_the_leader_is_told(broker: StandIn) -> None:
    broker.create("a")
    assert place(broker, LATEST, epoch=0).error_code is ErrorCode.none
    assert place(broker, LATEST, epoch=1).error_code is ErrorCode.unknown_leader_epoch


def test_partitions_that_do_not_exist_or_are_named_twice_are_refused_one_by_one(broker: StandIn) -> None:
    broker.create("a", 2)
    numbers = [0, 1, 1, 2, -1]
    partitions = [{"partition_index": number, "timestamp": LATEST} for number in numbers]
    asked = [{"name": "a", "partitions": partitions}, {"name": "no good", "partitions": partitions[:1]}]
    known, unknown = broker.ask(LIST, replica_id=CONSUMER, topics=asked).topics
    assert {partition.partition_index: partition.error_code for partition in known.partitions} == {
        0: ErrorCode.none,
        1: ErrorCode.invalid_request,
        2: ErrorCode.unknown_topic_or_partition,
        -1: ErrorCode.unknown_topic_or_partition,
    }
    assert [partition.error_code for partition in unknown.partitions] == [ErrorCode.unknown_topic_or_partition]


@pytest.mark.parametrize("version", range(VERSIONS[EPOCH_END][0], VERSIONS[EPOCH_END][1] + 1))
@pytest.mark.parametrize(
    ("partition", "current_epoch", "epoch", "expected"),
    [
        (0, -1, 0, (ErrorCode.none, 0, 3)),
        (0, 0, 0, (ErrorCode.none, 0, 3)),
        (0, -1, 1, (ErrorCode.none, -1, -1)),
        (0, -1, -1, (ErrorCode.none, -1, -1)),
        (0, 1, 0, (ErrorCode.unknown_leader_epoch, -1, -1)),
        (9, -1, 0, (ErrorCode.unknown_topic_or_partition, -1, -1)),
    ],
)
def test_the_only_leader_epoch_ends_where_the_log_ends(
    broker: StandIn, version: int, partition: int, current_epoch: int, epoch: int, expected: tuple[ErrorCode, int, int]
) -> None:
    broker.create("a")
    broker.append("a", 3)
    wanted = {"partition": partition, "current_leader_epoch": current_epoch, "leader_epoch": epoch}
    (topic,) = broker.ask(EPOCH_END, version, topics=[{"topic": "a", "partitions": [wanted]}]).topics
    (answer,) = topic.partitions
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == expected
