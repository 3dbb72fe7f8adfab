"""The contents of partitions: offsets, sizes, producers, and the deletion of records."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of, reported
from penstock.broker.handlers.topic_checks import existing_topic
from penstock.broker.request import Apis, Fields, Request, Steps
from penstock.errors import PenstockError
from penstock.log.batches.scan import LEADER_EPOCH
from penstock.log.partition import PartitionLog
from penstock.log.producers import ProducerState

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

NO_EPOCH: Final = -1
NOT_FOUND: Final = -1

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_CONSUMER: Final = -1
_READ_COMMITTED: Final = 1
TO_HIGH_WATERMARK: Final = -1


def list_offsets(broker: Broker, request: Request) -> Steps[Fields]:
    named = Counter(
        (topic.name, partition.partition_index) for topic in request.body.topics for partition in topic.partitions
    )
    topics: dict[str, dict[int, Fields]] = {}
    for topic in request.body.topics:
        answers = topics.setdefault(topic.name, {})
        for wanted in topic.partitions:
            number = wanted.partition_index
            try:
                if named[topic.name, number] > 1:
                    raise ProtocolError(ErrorCode.invalid_request, f"{topic.name}-{number} is asked for twice")
                log = _leader(broker, topic.name, number, getattr(wanted, "current_leader_epoch", NO_EPOCH))
                answers[number] = _place(number, ErrorCode.none, _find(log, wanted.timestamp, request))
            except PenstockError as error:
                answers[number] = _place(number, code_of(error), None)
            yield
    return {"topics": [{"name": name, "partitions": list(answers.values())} for name, answers in topics.items()]}


def _place(partition: int, code: ErrorCode, found: tuple[int, int] | None) -> Fields:
    offset, timestamp = found or (NOT_FOUND, -1)
    return {
        "partition_index": partition,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": NO_EPOCH if found is None else LEADER_EPOCH,
    }


def _find(log: PartitionLog, timestamp: int, request: Request) -> tuple[int, int] | None:
    if timestamp < 0 and request.version < _SINCE_VERSION.get(timestamp, request.version + 1):
        raise ProtocolError(
            ErrorCode.unsupported_version, f"timestamp {timestamp} has no meaning in version {request.version}"
        )
    end = _readable_end(log, request)
    if timestamp == LATEST:
        return end, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
    return found if found is not None and found[0] < end else None


def _readable_end(log: PartitionLog, request: Request) -> int:
    """The end of the log for this client; only replicas see records before they are safe."""
    if request.body.replica_id != _CONSUMER:
        return log.end_offset
    if request.get("isolation_level", 0) == _READ_COMMITTED:
        return log.last_stable_offset
    return log.high_watermark


def offset_for_leader_epoch(broker: Broker, request: Request) -> Steps[Fields]:
    topics: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        topics.append({"topic": topic.topic, "partitions": partitions})
        for wanted in topic.partitions:
            partitions.append(_epoch_end(broker, topic.topic, wanted))
            yield
    return {"topics": topics}


def _epoch_end(broker: Broker, topic: str, wanted: Any) -> Fields:
    """Where the records of a leader epoch end. There is only one epoch."""
    code, epoch, end = ErrorCode.none, NO_EPOCH, NOT_FOUND
    try:
        log = _leader(broker, topic, wanted.partition, wanted.current_leader_epoch)
        if wanted.leader_epoch == LEADER_EPOCH:
            epoch, end = LEADER_EPOCH, log.end_offset
    except PenstockError as error:
        code = code_of(error)
    return {"error_code": code, "partition": wanted.partition, "leader_epoch": epoch, "end_offset": end}


def _leader(broker: Broker, topic: str, partition: int, expected_epoch: int) -> PartitionLog:
    """The partition, if the client's leader epoch, if given, is ours."""
    log = broker.topics.partition(topic, partition)
    if log is None:
        raise ProtocolError(ErrorCode.unknown_topic_or_partition)
    if expected_epoch > LEADER_EPOCH:
        raise ProtocolError(ErrorCode.unknown_leader_epoch)
    return log


def delete_records(broker: Broker, request: Request) -> Steps[Fields]:
    topics: dict[str, list[Fields]] = {}
    for topic in request.body.topics:
        answers = topics.setdefault(topic.name, [])
        for wanted in topic.partitions:
            code, start = ErrorCode.none, -1
            try:
                start = _delete_before(broker, topic.name, wanted.partition_index, wanted.offset)
            except PenstockError as error:
                code = code_of(error)
            answers.append({"partition_index": wanted.partition_index, "low_watermark": start, "error_code": code})
            yield
    return {"topics": [{"name": name, "partitions": answers} for name, answers in topics.items()]}


def _delete_before(broker: Broker, name: str, partition: int, offset: int) -> int:
    topic = broker.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        raise ProtocolError(ErrorCode.unknown_topic_or_partition)
    if topic.internal:
        raise ProtocolError(ErrorCode.invalid_topic_exception, f"{name} is the broker's own; its records stay")
    if topic.config.compacts and not topic.config.deletes:
        raise ProtocolError(
            ErrorCode.policy_violation,
            f"{name} keeps the last record of every key; add 'delete' to its cleanup.policy to delete by offset",
        )
    log = topic.partitions[partition]
    return log.delete_records(log.high_watermark if offset == TO_HIGH_WATERMARK else offset)


def describe_log_dirs(broker: Broker, request: Request) -> Steps[Fields]:
    total, usable, code = -1, -1, ErrorCode.none
    try:
        disk = shutil.disk_usage(broker.data_folder)
        total, usable = disk.total, disk.free
    except OSError:
        code = ErrorCode.kafka_storage_error
    result = {
        "error_code": code,
        "log_dir": str(broker.data_folder.absolute()),
        "topics": (yield from _sizes(broker, request)) if code is ErrorCode.none else [],
        "total_bytes": total,
        "usable_bytes": usable,
        "is_cordoned": False,
    }
    return {"error_code": ErrorCode.none, "results": [result]}


def _sizes(broker: Broker, request: Request) -> Steps[list[Fields]]:
    """The requested partitions that exist. A topic without any is left out."""
    wanted: dict[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {}
        for asked in request.body.topics:
            wanted.setdefault(asked.topic, set()).update(asked.partitions)
    sizes: list[Fields] = []
    for name in list(broker.topics.names() if wanted is None else wanted):
        topic = broker.topics.get(name)
        partitions = [
            {
                "partition_index": number,
                "partition_size": log.size_bytes,
                "offset_lag": log.end_offset - log.high_watermark,
                "is_future_key": False,
            }
            for number, log in enumerate(topic.partitions if topic is not None else ())
            if wanted is None or number in wanted[name]
        ]
        if partitions:
            sizes.append({"name": name, "partitions": partitions})
        yield
    return sizes


def describe_producers(broker: Broker, request: Request) -> Steps[Fields]:
    topics: dict[str, dict[int, Fields]] = {}
    for asked in request.body.topics:
        partitions = topics.setdefault(asked.name, {})
        for number in asked.partition_indexes:
            if number not in partitions:
                partitions[number] = _producers(broker, asked.name, number)
                yield
    return {"topics": [{"name": name, "partitions": list(answers.values())} for name, answers in topics.items()]}


def _producers(broker: Broker, name: str, partition: int) -> Fields:
    states: Iterable[ProducerState] = ()
    with reported() as outcome:
        topic = existing_topic(broker.topics, name)
        if not 0 <= partition < len(topic.partitions):
            raise ProtocolError(
                ErrorCode.unknown_topic_or_partition,
                f"{name} has no partition {partition}; it has 0 to {len(topic.partitions) - 1}",
            )
        states = topic.partitions[partition].producers.producers()
    return {
        "partition_index": partition,
        **outcome,
        "active_producers": [
            {
                "producer_id": state.producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_timestamp": state.last_timestamp_ms,
                "coordinator_epoch": state.coordinator_epoch,
                "current_txn_start_offset": (
                    -1 if state.transaction_first_offset is None else state.transaction_first_offset
                ),
            }
            for state in states
        ],
    }


APIS: Final[Apis] = {
    2: (list_offsets, 1, 11),
    21: (delete_records, 0, 2),
    23: (offset_for_leader_epoch, 2, 4),
    35: (describe_log_dirs, 1, 5),
    61: (describe_producers, 0, 0),
}
