"""Fetch, by hand: the answer is a few headers between which the records go straight from the file to the socket."""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from penstock.broker.wire.primitives import read_uvarint, skip_tags, uvarint
from penstock.broker.wire.produce import TopicKey, read_legacy_name
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


class FetchAnswer(NamedTuple):
    """What is said of one partition; `length` bytes of records follow."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction] | None
    length: int


def read_fetch(data: memoryview, position: int, version: int) -> FetchRequest:
    if version < 15:
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(data, position)
    position += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(data, position)
        position += 8
    if version >= FLEXIBLE_SINCE:
        topics, forgotten = _read_flexible(data, position, version)
    else:
        topics, forgotten = _read_legacy(data, position, version)
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation == 1, session_id, session_epoch, topics, forgotten)


_Topics = list[tuple[TopicKey, list[FetchPartition]]]
_Forgotten = list[tuple[TopicKey, list[int]]]


def _read_flexible(data: memoryview, position: int, version: int) -> tuple[_Topics, _Forgotten]:
    topics: _Topics = []
    count, position = read_uvarint(data, position)
    for _ in range(count - 1):
        topic, position = _read_topic(data, position, version)
        partition_count, position = read_uvarint(data, position)
        partitions = []
        for _ in range(partition_count - 1):
            index, epoch, offset, _, _, max_bytes = _PARTITION_V12.unpack_from(data, position)
            partitions.append(FetchPartition(index, offset, max_bytes, epoch))
            position += 32
            position = position + 1 if data[position] == 0 else skip_tags(data, position)
        topics.append((topic, partitions))
        position = position + 1 if data[position] == 0 else skip_tags(data, position)
    forgotten: _Forgotten = []
    count, position = read_uvarint(data, position)
    for _ in range(count - 1):
        topic, position = _read_topic(data, position, version)
        partition_count, position = read_uvarint(data, position)
        numbers = [_INT.unpack_from(data, position + 4 * n)[0] for n in range(max(partition_count - 1, 0))]
        position = skip_tags(data, position + 4 * len(numbers))
        forgotten.append((topic, numbers))
    return topics, forgotten


def _read_topic(data: memoryview, position: int, version: int) -> tuple[TopicKey, int]:
    if version >= TOPIC_IDS_SINCE:
        return uuid.UUID(bytes=bytes(data[position : position + 16])), position + 16
    size, position = read_uvarint(data, position)
    return bytes(data[position : position + size - 1]), position + size - 1


def _read_legacy(data: memoryview, position: int, version: int) -> tuple[_Topics, _Forgotten]:
    topics: _Topics = []
    (count,) = _INT.unpack_from(data, position)
    position += 4
    for _ in range(count):
        topic, position = read_legacy_name(data, position)
        (partition_count,) = _INT.unpack_from(data, position)
        position += 4
        partitions = []
        for _ in range(partition_count):
            epoch = -1
            if version >= 9:
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
    forgotten: _Forgotten = []
    if version >= 7:
        (count,) = _INT.unpack_from(data, position)
        position += 4
        for _ in range(count):
            topic, position = read_legacy_name(data, position)
            (partition_count,) = _INT.unpack_from(data, position)
            numbers = [_INT.unpack_from(data, position + 4 + 4 * n)[0] for n in range(partition_count)]
            position += 4 + 4 * len(numbers)
            forgotten.append((topic, numbers))
    return topics, forgotten


def write_fetch(
    correlation_id: int,
    version: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[TopicKey, list[FetchAnswer]]],
) -> list[bytes]:
    """The headers of the answer: the records of the n-th partition go behind the n-th piece, the last piece ends it."""
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
