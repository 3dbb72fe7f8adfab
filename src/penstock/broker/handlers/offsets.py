"""Where a partition begins, ends, and stands at a time: ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.request import Fields, Handler, Request
from penstock.errors import PenstockError
from penstock.log.partition import PartitionLog

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

LEADER_EPOCH: Final = 0
"""The only leader that a partition ever has."""
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


def list_offsets(broker: Broker, request: Request) -> Fields:
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
    """Offset and timestamp of what a request asks for; None if there is no such record."""
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
    """The end of the log for whoever asks; only what is not a consumer sees records before they are safe."""
    if request.body.replica_id != _CONSUMER:
        return log.end_offset
    if request.get("isolation_level", 0) == _READ_COMMITTED:
        return log.last_stable_offset
    return log.high_watermark


def offset_for_leader_epoch(broker: Broker, request: Request) -> Fields:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_epoch_end(broker, topic.topic, wanted) for wanted in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


def _epoch_end(broker: Broker, topic: str, wanted: Any) -> Fields:
    """Where the records of a leader epoch end. Of every epoch but ours there are none, and the client learns that."""
    code, epoch, end = ErrorCode.none, NO_EPOCH, NOT_FOUND
    try:
        log = _leader(broker, topic, wanted.partition, wanted.current_leader_epoch)
        if wanted.leader_epoch == LEADER_EPOCH:
            epoch, end = LEADER_EPOCH, log.end_offset
    except PenstockError as error:
        code = code_of(error)
    return {"error_code": code, "partition": wanted.partition, "leader_epoch": epoch, "end_offset": end}


def _leader(broker: Broker, topic: str, partition: int, expected_epoch: int) -> PartitionLog:
    """The partition, provided that the client's idea of its leader epoch, if it has one, is ours."""
    log = broker.topics.partition(topic, partition)
    if log is None:
        raise ProtocolError(ErrorCode.unknown_topic_or_partition)
    if expected_epoch > LEADER_EPOCH:
        raise ProtocolError(ErrorCode.unknown_leader_epoch)
    return log


HANDLERS: Final[dict[int, Handler]] = {2: list_offsets, 23: offset_for_leader_epoch}
VERSIONS: Final = {2: (1, 11), 23: (2, 4)}
