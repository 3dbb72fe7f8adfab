"""Fetch, by hand: the response is a few headers, between which records go directly from file to socket."""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from penstock.broker.wire.primitives import MAX_ENTRIES, claim_entries, read_name, read_uvarint, skip_tags, uvarint
from penstock.broker.wire.produce import TopicKey
from penstock.log.aborted import AbortedTransaction

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13

_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_HEADER: Final = struct.Struct(">ii")
_LIMITS: Final = struct.Struct(">iiib")
"""Longest wait, least bytes, most bytes, isolation level."""
_SESSION: Final = struct.Struct(">ii")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V4: Final = struct.Struct(">iqi")
_ANSWER: Final = struct.Struct(">ihqqq")
_ANSWER_V4: Final = struct.Struct(">ihqq")
_ABORTED: Final = struct.Struct(">qq")
_TOP: Final = struct.Struct(">ihi")
"""Throttle time, error code, session id."""


class FetchPartition(NamedTuple):
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    uses_topic_ids: bool
    """Whether topics are identified by ids, or by names."""


class FetchAnswer(NamedTuple):
    """The response for one partition; `length` bytes of records follow."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction] | None
    length: int


def read_fetch(data: memoryview, position: int, version: int, max_entries: int = MAX_ENTRIES) -> FetchRequest:
    """Parse the request whose body starts at `position`. Raises MalformedRequestError, IndexError or struct.error."""
    if version < 15:
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(data, position)
    position += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(data, position)
        position += 8
    topics, position, left = _read_topics(data, position, version, max_entries)
    forgotten = _read_forgotten(data, position, version, left) if version >= 7 else []
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation == 1,
        session_id,
        session_epoch,
        topics,
        forgotten,
        version >= TOPIC_IDS_SINCE,
    )


_Topics = list[tuple[TopicKey, list[FetchPartition]]]
_Forgotten = list[tuple[TopicKey, list[int]]]


def _read_topics(data: memoryview, position: int, version: int, left: int) -> tuple[_Topics, int, int]:
    """The topics, the position after them, and how many more array entries the request may hold."""
    flexible = version >= FLEXIBLE_SINCE
    topics: _Topics = []
    count, position, left = _read_count(data, position, flexible, left)
    for _ in range(count):
        topic, position = _read_topic(data, position, version)
        partition_count, position, left = _read_count(data, position, flexible, left)
        partitions = []
        for _ in range(partition_count):
            epoch = -1
            if flexible:
                index, epoch, offset, _, _, max_bytes = _PARTITION_V12.unpack_from(data, position)
                position += _PARTITION_V12.size
                position = position + 1 if data[position] == 0 else skip_tags(data, position)
            elif version >= 9:
                index, epoch, offset, _, max_bytes = _PARTITION_V9.unpack_from(data, position)
                position += _PARTITION_V9.size
            elif version >= 5:
                index, offset, _, max_bytes = _PARTITION_V5.unpack_from(data, position)
                position += _PARTITION_V5.size
            else:
                index, offset, max_bytes = _PARTITION_V4.unpack_from(data, position)
                position += _PARTITION_V4.size
            partitions.append(FetchPartition(index, offset, max_bytes, epoch))
        topics.append((topic, partitions))
        if flexible:
            position = position + 1 if data[position] == 0 else skip_tags(data, position)
    return topics, position, left


def _read_forgotten(data: memoryview, position: int, version: int, left: int) -> _Forgotten:
    flexible = version >= FLEXIBLE_SINCE
    forgotten: _Forgotten = []
    count, position, left = _read_count(data, position, flexible, left)
    for _ in range(count):
        topic, position = _read_topic(data, position, version)
        number_count, position, left = _read_count(data, position, flexible, left)
        numbers = [_INT.unpack_from(data, position + _INT.size * n)[0] for n in range(number_count)]
        position += _INT.size * number_count
        if flexible:
            position = skip_tags(data, position)
        forgotten.append((topic, numbers))
    return forgotten


def _read_count(data: memoryview, position: int, flexible: bool, left: int) -> tuple[int, int, int]:
    if flexible:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        (count,) = _INT.unpack_from(data, position)
        position += _INT.size
    return count, position, claim_entries(count, len(data) - position, left)


def _read_topic(data: memoryview, position: int, version: int) -> tuple[TopicKey, int]:
    if version >= TOPIC_IDS_SINCE:
        return uuid.UUID(bytes=bytes(data[position : position + 16])), position + 16
    return read_name(data, position, flexible=version >= FLEXIBLE_SINCE)


def write_fetch(
    correlation_id: int,
    version: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[TopicKey, list[FetchAnswer]]],
) -> list[bytes]:
    """The headers of the response: the records of the n-th partition follow the n-th piece; the last piece ends it."""
    flexible = version >= FLEXIBLE_SINCE
    pieces: list[bytes] = []
    current: list[bytes] = [uvarint(len(topics) + 1) if flexible else _INT.pack(len(topics))]
    total = 0
    for topic, answers in topics:
        current.append(_topic_prefix(topic, len(answers), flexible))
        for answer in answers:
            current.append(_flexible_prefix(answer) if flexible else _legacy_prefix(answer, version))
            pieces.append(b"".join(current))
            current = [b"\x00"] if flexible else []
            total += answer.length
        if flexible:
            current.append(b"\x00")
    if flexible:
        current.append(b"\x00")
    pieces.append(b"".join(current))
    top = _TOP.pack(0, error_code, session_id) if version >= 7 else _INT.pack(0)
    if flexible:
        top = b"\x00" + top
    size = sum(map(len, pieces)) + total + len(top) + 4
    pieces[0] = _HEADER.pack(size, correlation_id) + top + pieces[0]
    return pieces


def _topic_prefix(topic: TopicKey, count: int, flexible: bool) -> bytes:
    if isinstance(topic, uuid.UUID):
        return topic.bytes + uvarint(count + 1)
    if flexible:
        return uvarint(len(topic) + 1) + topic + uvarint(count + 1)
    return _SHORT.pack(len(topic)) + topic + _INT.pack(count)


def _flexible_prefix(answer: FetchAnswer) -> bytes:
    fixed = _ANSWER.pack(
        answer.partition,
        answer.error_code,
        answer.high_watermark,
        answer.last_stable_offset,
        answer.log_start_offset,
    )
    if answer.aborted is None:
        aborted = b"\x00"
    else:
        entries = [_ABORTED.pack(entry.producer_id, entry.first_offset) + b"\x00" for entry in answer.aborted]
        aborted = uvarint(len(entries) + 1) + b"".join(entries)
    return fixed + aborted + b"\xff\xff\xff\xff" + uvarint(answer.length + 1)


def _legacy_prefix(answer: FetchAnswer, version: int) -> bytes:
    fixed = _ANSWER_V4.pack(answer.partition, answer.error_code, answer.high_watermark, answer.last_stable_offset)
    if version >= 5:
        fixed += struct.pack(">q", answer.log_start_offset)
    if answer.aborted is None:
        aborted = b"\xff\xff\xff\xff"
    else:
        entries = [_ABORTED.pack(entry.producer_id, entry.first_offset) for entry in answer.aborted]
        aborted = _INT.pack(len(entries)) + b"".join(entries)
    replica = b"\xff\xff\xff\xff" if version >= 11 else b""
    return fixed + aborted + replica + _INT.pack(answer.length)
