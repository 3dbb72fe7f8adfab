"""Produce, by hand: the records stay in the connection's buffer, as memoryviews."""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from penstock.broker.wire.primitives import (
    MAX_ENTRIES,
    MalformedRequestError,
    claim_entries,
    read_name,
    read_uvarint,
    skip_tags,
    uvarint,
)

MIN_VERSION: Final = 0
MAX_VERSION: Final = 13
FLEXIBLE_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13
BATCHES_SINCE: Final = 3
"""Older versions carry message sets, the formats before record batches."""

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_RESULT_V0: Final = struct.Struct(">ihq")
_RESULT_V2: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_HEADER: Final = struct.Struct(">ii")

TopicKey = bytes | uuid.UUID


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
    """By topic, its name as bytes or its id: partition and records."""


class ProduceResult(NamedTuple):
    partition: int
    error_code: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    message: str | None = None
    records: tuple[int, ...] = ()
    """The indexes of the rejected records in the batch."""


def read_produce(data: memoryview, position: int, version: int, max_entries: int = MAX_ENTRIES) -> ProduceRequest:
    """Parse the request whose body starts at `position`. Raises MalformedRequestError, IndexError or struct.error."""
    if version >= FLEXIBLE_SINCE:
        return _read_flexible(data, position, version, max_entries)
    return _read_legacy(data, position, version, max_entries)


def _read_flexible(data: memoryview, position: int, version: int, left: int) -> ProduceRequest:
    size, position = read_uvarint(data, position)
    transactional_id = None
    if size:
        transactional_id = str(data[position : position + size - 1], "utf-8")
        position += size - 1
    acks, _ = _ACKS_TIMEOUT.unpack_from(data, position)
    topic_count, position = read_uvarint(data, position + 6)
    left = claim_entries(topic_count - 1, len(data) - position, left)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count - 1):
        topic: TopicKey
        if version >= TOPIC_IDS_SINCE:
            topic = uuid.UUID(bytes=bytes(data[position : position + 16]))
            position += 16
        else:
            topic, position = read_name(data, position, flexible=True)
        partition_count, position = read_uvarint(data, position)
        left = claim_entries(partition_count - 1, len(data) - position, left)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count - 1):
            (index,) = _INT.unpack_from(data, position)
            size, position = read_uvarint(data, position + 4)
            records = None
            if size:
                end = position + size - 1
                if end > len(data):
                    raise MalformedRequestError("the records reach past the end of the request")
                records = data[position:end]
                position = end
            partitions.append((index, records))
            position = position + 1 if data[position] == 0 else skip_tags(data, position)
        topics.append((topic, partitions))
        position = position + 1 if data[position] == 0 else skip_tags(data, position)
    return ProduceRequest(transactional_id, acks, topics)


def _read_legacy(data: memoryview, position: int, version: int, left: int) -> ProduceRequest:
    transactional_id = None
    if version >= BATCHES_SINCE:
        (size,) = _SHORT.unpack_from(data, position)
        position += 2
        if size >= 0:
            transactional_id = str(data[position : position + size], "utf-8")
            position += size
    acks, _ = _ACKS_TIMEOUT.unpack_from(data, position)
    (topic_count,) = _INT.unpack_from(data, position + 6)
    position += 10
    left = claim_entries(topic_count, len(data) - position, left)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        topic, position = read_name(data, position, flexible=False)
        (partition_count,) = _INT.unpack_from(data, position)
        position += 4
        left = claim_entries(partition_count, len(data) - position, left)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = _HEADER.unpack_from(data, position)
            position += 8
            records = None
            if size >= 0:
                if position + size > len(data):
                    raise MalformedRequestError("the records reach past the end of the request")
                records = data[position : position + size]
                position += size
            partitions.append((index, records))
        topics.append((topic, partitions))
    return ProduceRequest(transactional_id, acks, topics)


def write_produce(correlation_id: int, version: int, results: list[tuple[TopicKey, list[ProduceResult]]]) -> bytes:
    if version >= FLEXIBLE_SINCE:
        return _write_flexible(correlation_id, results)
    return _write_legacy(correlation_id, version, results)


def _write_flexible(correlation_id: int, results: list[tuple[TopicKey, list[ProduceResult]]]) -> bytes:
    parts: list[bytes] = [b"\x00", uvarint(len(results) + 1)]
    for topic, partitions in results:
        parts.append(topic.bytes if isinstance(topic, uuid.UUID) else uvarint(len(topic) + 1) + topic)
        parts.append(uvarint(len(partitions) + 1))
        for partition, error_code, base_offset, append_time, log_start, message, records in partitions:
            parts.append(_RESULT_V5.pack(partition, error_code, base_offset, append_time, log_start))
            if message is None:
                parts.append(b"\x01\x00\x00")
            else:
                text = message.encode()
                faults = b"".join(_INT.pack(number) + b"\x00\x00" for number in records)
                parts.append(uvarint(len(records) + 1) + faults + uvarint(len(text) + 1) + text + b"\x00")
        parts.append(b"\x00")
    parts.append(b"\x00\x00\x00\x00\x00")
    body = b"".join(parts)
    return _HEADER.pack(len(body) + 4, correlation_id) + body


def _write_legacy(correlation_id: int, version: int, results: list[tuple[TopicKey, list[ProduceResult]]]) -> bytes:
    parts: list[bytes] = [_INT.pack(len(results))]
    for topic, partitions in results:
        assert isinstance(topic, bytes)
        parts.append(_SHORT.pack(len(topic)) + topic + _INT.pack(len(partitions)))
        for partition, error_code, base_offset, append_time, log_start, message, records in partitions:
            if version >= 5:
                parts.append(_RESULT_V5.pack(partition, error_code, base_offset, append_time, log_start))
            elif version >= 2:
                parts.append(_RESULT_V2.pack(partition, error_code, base_offset, append_time))
            else:
                parts.append(_RESULT_V0.pack(partition, error_code, base_offset))
            if version >= 8:
                text = None if message is None else message.encode()
                faults = b"".join(_INT.pack(number) + b"\xff\xff" for number in records)
                parts.append(_INT.pack(len(records)) + faults)
                parts.append(b"\xff\xff" if text is None else _SHORT.pack(len(text)) + text)
    if version >= 1:
        parts.append(_INT.pack(0))
    body = b"".join(parts)
    return _HEADER.pack(len(body) + 4, correlation_id) + body
