"""DeleteRecords, DescribeLogDirs and DescribeProducers."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.log.partition import PartitionLog
from tests.broker.handlers.stand_in import VERSIONS, StandIn
from tests.log.batches import TRANSACTIONAL

DELETE, FOLDERS, PRODUCERS = 21, 35, 61


def delete(
    broker: StandIn, name: str, partition: int, offset: int, version: int | None = None
) -> tuple[ErrorCode, int]:
    wanted = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
    (topic,) = broker.ask(DELETE, version, topics=wanted).topics
    (answer,) = topic.partitions
    return answer.error_code, answer.low_watermark


def first(broker: StandIn, name: str) -> PartitionLog:
    topic = broker.topics.get(name)
    assert topic is not None
    return topic.partitions[0]


@pytest.mark.parametrize("version", range(VERSIONS[DELETE][0], VERSIONS[DELETE][1] + 1))
def test_every_version_deletes_records_before_an_offset(broker: StandIn, version: int) -> None:
    broker.create("a")
    broker.append("a", 5)
    assert delete(broker, "a", 0, 2, version) == (ErrorCode.none, 2)
    assert first(broker, "a").log_start_offset == 2
    assert delete(broker, "a", 0, 1, version) == (ErrorCode.none, 2)
    assert delete(broker, "a", 0, -1, version) == (ErrorCode.none, 5)
    assert first(broker, "a").log_start_offset == 5


def test_records_that_cannot_be_deleted_are_refused(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 5)
    broker.create("compacted", cleanup_policy="compact")
    broker.create("both", cleanup_policy="compact,delete")
    broker.create("kept", cleanup_policy="")
    broker.create("__consumer_offsets", cleanup_policy="compact")
    assert delete(broker, "a", 0, 6) == (ErrorCode.offset_out_of_range, -1)
    assert delete(broker, "a", 0, -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete(broker, "a", 1, 0) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(broker, "nope", 0, 0) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(broker, "compacted", 0, 0) == (ErrorCode.policy_violation, -1)
    assert delete(broker, "both", 0, 0) == (ErrorCode.none, 0)
    assert delete(broker, "kept", 0, 0) == (ErrorCode.none, 0)
    assert delete(broker, "__consumer_offsets", 0, 0) == (ErrorCode.invalid_topic_exception, -1)
    assert first(broker, "a").log_start_offset == 0


@pytest.mark.parametrize("version", range(VERSIONS[FOLDERS][0], VERSIONS[FOLDERS][1] + 1))
def test_every_version_tells_the_sizes_of_partitions(broker: StandIn, version: int) -> None:
    broker.create("a", 2)
    broker.create("b")
    broker.append("a", 5)

    def sizes(asked: list[dict[str, Any]] | None) -> dict[tuple[str, int], int]:
        (folder,) = broker.ask(FOLDERS, version, topics=asked).results
        assert (folder.error_code, folder.log_dir) == (ErrorCode.none, str(broker.data_folder))
        if version >= 4:
            assert folder.total_bytes == shutil.disk_usage(broker.data_folder).total
            assert 0 < folder.usable_bytes < folder.total_bytes
        return {
            (topic.name, each.partition_index): each.partition_size
            for topic in folder.topics
            for each in topic.partitions
        }

    size = first(broker, "a").size_bytes
    assert size > 0
    assert sizes(None) == {("a", 0): size, ("a", 1): 0, ("b", 0): 0}
    assert sizes([]) == {}
    assert sizes([{"topic": "a", "partitions": [0, 77]}, {"topic": "nope", "partitions": [0]}]) == {("a", 0): size}


def test_the_producers_of_a_partition_are_told_with_their_open_transactions(broker: StandIn) -> None:
    broker.create("a")
    broker.append("a", 2, producer_id=41)
    broker.append("a", 3, producer_id=42, flags=TRANSACTIONAL)
    asked = [{"name": "a", "partition_indexes": [0]}]
    (topic,) = broker.ask(PRODUCERS, topics=asked).topics
    (partition,) = topic.partitions
    assert partition.error_code is ErrorCode.none
    told = {
        state.producer_id: (state.producer_epoch, state.last_sequence, state.current_txn_start_offset)
        for state in partition.active_producers
    }
    assert told == {41: (0, 1, -1), 42: (0, 2, 2)}


def test_producers_of_what_does_not_exist_are_refused_with_the_reason(broker: StandIn) -> None:
    broker.create("a")
    asked = [{"name": name, "partition_indexes": [3]} for name in ("a", "nope", "no good")]
    topics = broker.ask(PRODUCERS, topics=asked).topics
    answers = [partition for topic in topics for partition in topic.partitions]
    assert [answer.error_code for answer in answers] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
    ]
    assert all(answer.error_message for answer in answers)
