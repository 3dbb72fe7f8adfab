"""The outline of a batch's records for compaction: position, key, and whether there is a value.

A record that stays is copied as it is: it refers only to the base offset and base timestamp of its batch, and those
stay. If the base timestamp has to change, the one number that refers to it is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import CorruptBatchError
from penstock.log.batches.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    seal_batch,
)
from penstock.log.batches.compression import compress, decompress
from penstock.log.batches.varint import read_varint, write_varint


class Outline(NamedTuple):
    start: int
    """The position of the record's length field."""
    behind_timestamp: int
    end: int
    timestamp_delta: int
    offset: int
    key: bytes | None
    has_value: bool


def body_of(header: BatchHeader, batch: memoryview) -> bytes:
    return decompress(header.codec, batch[HEADER_BYTES : header.size_bytes], MAX_DECOMPRESSED_BYTES)


def outlines_of(header: BatchHeader, body: bytes) -> list[Outline]:
    """The outline of each record in a batch. CorruptBatchError if the contents are inconsistent."""
    outlines: list[Outline] = []
    base_offset = header.base_offset
    position = 0
    try:
        for _ in range(header.record_count):
            start = position
            length, position = read_varint(body, position)
            end = position + length
            timestamp_delta, behind_timestamp = read_varint(body, position + 1)
            offset_delta, position = read_varint(body, behind_timestamp)
            key_length, position = read_varint(body, position)
            key = None
            if key_length >= 0:
                key = body[position : position + key_length]
                position += key_length
            value_length, position = read_varint(body, position)
            if position + max(value_length, 0) > end or end > len(body):
                raise CorruptBatchError("a record's fields do not fit into the length it claims")
            outlines.append(
                Outline(
                    start,
                    behind_timestamp,
                    end,
                    timestamp_delta,
                    base_offset + offset_delta,
                    key,
                    value_length >= 0,
                )
            )
            position = end
    except IndexError as error:
        raise CorruptBatchError("the records end before the last of them does") from error
    if position != len(body):
        raise CorruptBatchError(f"{len(body) - position} bytes follow the last record")
    return outlines


def with_records(
    header: BatchHeader, body: bytes, kept: Sequence[Outline], delete_horizon_ms: int | None = None
) -> tuple[BatchHeader, bytearray]:
    """The batch with only these records, at least one, and optionally with a delete horizon.

    The horizon is the time at which the batch's tombstones, or a marker, may be removed. It replaces the base
    timestamp. Offsets, producer and sequence do not change.
    """
    if delete_horizon_ms is None:
        content = b"".join(body[outline.start : outline.end] for outline in kept)
        changed = header
    else:
        content = _based_on(delete_horizon_ms, header, body, kept)
        changed = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=delete_horizon_ms)
    if not header.attributes & LOG_APPEND_TIME:
        latest = max(outline.timestamp_delta for outline in kept)
        changed = changed._replace(max_timestamp=header.base_timestamp + latest)
    changed = changed._replace(record_count=len(kept))
    return changed, seal_batch(changed, compress(header.codec, content) if header.codec else content)


def without_records(header: BatchHeader) -> tuple[BatchHeader, bytearray]:
    """The batch without records: it still shows how far its producer got."""
    attributes = header.attributes & ~(DELETE_HORIZON | CODEC_MASK)
    emptied = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return emptied, seal_batch(emptied, b"")


def _based_on(base_timestamp: int, header: BatchHeader, body: bytes, kept: Sequence[Outline]) -> bytes:
    content = bytearray()
    shift = header.base_timestamp - base_timestamp
    for outline in kept:
        _, attributes = read_varint(body, outline.start)
        record = bytearray(body[attributes : attributes + 1])
        write_varint(record, outline.timestamp_delta + shift)
        record += body[outline.behind_timestamp : outline.end]
        write_varint(content, len(record))
        content += record
    return bytes(content)
