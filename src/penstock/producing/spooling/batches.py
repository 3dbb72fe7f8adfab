"""Records of a spool as batches of the log. Each `put` is one batch, so it is stored whole or not at all.

A spooled record has a topic and perhaps a partition, for which Kafka's format has no field. So each record of a batch
has one value: topic, partition, timestamp, key, value and headers, in msgpack. A batch of one record is built here by
hand, in a third of the time; `penstock.log.batches.batch` reads both.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.errors import CorruptBatchError, SerdeError
from penstock.log.batches import batch as log_batch
from penstock.log.batches.varint import read_varint, write_varint
from penstock.model import Headers, NewRecord

_PLACE: Final = struct.Struct(">qiibI")
"""Base offset, length, leader epoch, magic and checksum: the fields before what the checksum covers."""
_CHECKED: Final = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, base and largest timestamp, producer id, epoch and sequence, number of records."""

_BEFORE_VALUE: Final = b"\x00\x00\x00\x01"
"""No attributes, no deltas, no key."""
_COUNT_AT: Final = log_batch.HEADER_BYTES - 4
_ONE: Final = struct.pack(">i", 1)

_Fields = tuple[str, int | None, int | None, bytes | None, bytes | None, Headers]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Fields).decode


def build_one(record: NewRecord, now_ms: int) -> tuple[int, bytes]:
    """A batch of one record without its first 21 bytes, and its checksum."""
    content = _content(record)
    head, head_crc = _head_of_one(now_ms)
    body = _frame(len(content)) + content + b"\x00"
    return crc32c(body, head_crc), head + body


def build_many(records: Sequence[NewRecord], now_ms: int) -> tuple[int, bytes]:
    """Like `build_one`, for records that belong together."""
    built = log_batch.build_batch([log_batch.NewRecord(now_ms, None, _content(record)) for record in records])
    return log_batch.read_header(built).crc, bytes(built[log_batch.CRC_START :])


def place(sequence: int, crc: int, rest: bytes) -> bytes:
    """The whole batch, with this number as its base offset."""
    length = len(rest) + log_batch.CRC_START - log_batch.LENGTH_PREFIX_BYTES
    return _PLACE.pack(sequence, length, 0, log_batch.MAGIC, crc) + rest


def records_in(batch: bytes | memoryview) -> list[NewRecord]:
    """The records of a batch. Raises CorruptBatchError if it is a batch, but not one of a spool."""
    content = _content_of_one(batch)
    contents = [stored.value or b"" for stored in log_batch.records_of(batch)] if content is None else [content]
    found = []
    for each in contents:
        try:
            topic, partition, timestamp_ms, key, value, headers = _decode(each)
        except msgspec.MsgspecError as error:
            raise CorruptBatchError(f"it does not hold a spooled record: {error}") from error
        found.append(NewRecord(topic, value, key, headers, timestamp_ms, partition))
    return found


def _content_of_one(batch: bytes | memoryview) -> bytes | memoryview | None:
    """The value in a batch made by `build_one`, its checksum verified; None for any other batch."""
    try:
        _, start = read_varint(batch, log_batch.HEADER_BYTES)
        size, start = read_varint(batch, start + len(_BEFORE_VALUE))
    except (IndexError, CorruptBatchError):
        return None
    end = start + size
    frame = _frame(size) if 0 <= size < len(batch) else None
    is_one = frame == batch[log_batch.HEADER_BYTES : start] and end + 1 == len(batch) and batch[end] == 0
    return batch[start:end] if is_one and batch[_COUNT_AT : log_batch.HEADER_BYTES] == _ONE else None


def _content(record: NewRecord) -> bytes:
    try:
        return _encode((record.topic, record.partition, record.timestamp_ms, record.key, record.value, record.headers))
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise SerdeError(f"a record for topic {record.topic!r} cannot be stored in a spool: {error}") from error


@functools.lru_cache(maxsize=2)
def _head_of_one(now_ms: int) -> tuple[bytes, int]:
    """The checksummed fields before the records; the same for all batches of one millisecond."""
    none = log_batch.NO_PRODUCER_ID
    head = _CHECKED.pack(0, 0, now_ms, now_ms, none, log_batch.NO_PRODUCER_EPOCH, log_batch.NO_SEQUENCE, 1)
    return head, crc32c(head)


@functools.lru_cache(maxsize=4096)
def _frame(size: int) -> bytes:
    """The fields before a record's value: length, no attributes, no deltas, no key, and the value's length."""
    inner = bytearray(_BEFORE_VALUE)
    write_varint(inner, size)
    frame = bytearray()
    write_varint(frame, len(inner) + size + 1)
    return bytes(frame + inner)
