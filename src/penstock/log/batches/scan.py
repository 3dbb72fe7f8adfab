"""Scanning a segment file batch by batch, verifying each, and continuing after damage."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.batches.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    is_plausible,
)

CHUNK_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 512 << 20
"""No batch is ever longer; a length field beyond this is damage."""

LEADER_EPOCH: Final = 0
"""There is only one leader, so the epoch never changes."""

_EPOCH_AND_MAGIC: Final = b"\x00\x00\x00\x00\x02"
"""Leader epoch 0 and magic 2, which are 12 bytes into every batch of this log."""

ReadAt = Callable[[int, int], bytes]
"""Read `length` bytes at `position`; fewer at the end of the file."""


class WholeBatch(NamedTuple):
    """A batch that is whole and matches its checksum."""

    position: int
    header: BatchHeader
    batch: memoryview

    @property
    def end(self) -> int:
        return self.position + len(self.batch)


class BadBytes(NamedTuple):
    """The bytes from `position` to `end` are not a batch that can be trusted."""

    position: int
    end: int
    reason: str


def scan(
    read_at: ReadAt, position: int, end: int, next_offset: int = 0, *, dense: bool = True
) -> Iterator[WholeBatch | BadBytes]:
    """Every batch from `position` to `end`, its checksum verified.

    The checksum does not cover the base offset. In a segment that was never compacted (`dense`), each batch must follow
    the one before it without a gap, which confirms it; in a compacted one, only the index can confirm offsets.

    After invalid bytes the scan continues at the next valid batch; if there is none, the last item is a `BadBytes` that
    reaches the end: a torn tail.
    """
    chunk = b""
    chunk_start = position
    exact = dense
    while position < end:
        if position + HEADER_BYTES > chunk_start + len(chunk):
            chunk, chunk_start = read_at(position, min(CHUNK_BYTES, end - position)), position
        header, reason = _header_at(chunk, position - chunk_start, end - position, next_offset, exact)
        if header is not None:
            if position + header.size_bytes > chunk_start + len(chunk):
                chunk, chunk_start = (
                    read_at(position, max(header.size_bytes, min(CHUNK_BYTES, end - position))),
                    position,
                )
            begin = position - chunk_start
            batch = memoryview(chunk)[begin : begin + header.size_bytes]
            if len(batch) == header.size_bytes and crc32c(batch[CRC_START:]) == header.crc:
                yield WholeBatch(position, header, batch)
                position += header.size_bytes
                next_offset = header.next_offset
                exact = dense
                continue
            reason = "the checksum does not match the contents"
        resumed = find_batch(read_at, position + 1, end, next_offset)
        stop = end if resumed is None else resumed
        yield BadBytes(position, stop, reason)
        position = stop
        exact = False


def _header_at(
    chunk: bytes, at: int, left: int, next_offset: int, exact: bool = False
) -> tuple[BatchHeader | None, str]:
    if left < HEADER_BYTES or at + HEADER_BYTES > len(chunk):
        return None, "the file ends within a batch header"
    header = BatchHeader._make(HEADER.unpack_from(chunk, at))
    if header.magic != MAGIC:
        return None, f"format version {header.magic} instead of {MAGIC}"
    if not HEADER_BYTES - LENGTH_PREFIX_BYTES <= header.length <= MAX_BATCH_BYTES:
        return None, f"an impossible length of {header.length} bytes"
    if header.size_bytes > left:
        return None, f"it claims {header.size_bytes} bytes where {left} are left"
    if header.leader_epoch != LEADER_EPOCH:
        return None, f"leader epoch {header.leader_epoch} instead of {LEADER_EPOCH}"
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return None, f"offset {header.base_offset} where at least {next_offset} was expected"
    if exact and header.base_offset != next_offset:
        return None, f"offset {header.base_offset} where {next_offset} was expected"
    return header, ""


def describe_tail(read_at: ReadAt, position: int, end: int, next_offset: int) -> tuple[int, str]:
    """How many records an invalid tail claims to have, and why its first batch is invalid.

    Batches are counted as long as their headers are plausible and their offsets consecutive; 0 if the first one is not.
    """
    _, reason = _header_at(read_at(position, HEADER_BYTES), 0, end - position, next_offset, exact=True)
    records = 0
    while position < end:
        head = read_at(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            break
        header = BatchHeader._make(HEADER.unpack(head))
        count = header.record_count
        if not is_plausible(header) or header.base_offset != next_offset or count != header.last_offset_delta + 1:
            break
        records += count
        position += header.size_bytes
        next_offset = header.next_offset
    return records, reason or "the checksum does not match the contents"


def find_batch(read_at: ReadAt, position: int, end: int, min_offset: int) -> int | None:
    """The position of the next valid batch at or after `position`, or None."""
    overlap = HEADER_BYTES
    while position + HEADER_BYTES <= end:
        chunk = read_at(position, min(CHUNK_BYTES + overlap, end - position))
        if len(chunk) < HEADER_BYTES:
            return None
        hit = chunk.find(_EPOCH_AND_MAGIC, LENGTH_PREFIX_BYTES)
        while hit >= 0:
            candidate = position + hit - LENGTH_PREFIX_BYTES
            if is_good_batch(read_at, candidate, end, min_offset):
                return candidate
            hit = chunk.find(_EPOCH_AND_MAGIC, hit + 1)
        if len(chunk) < CHUNK_BYTES + overlap:
            return None
        position += CHUNK_BYTES
    return None


def is_good_batch(read_at: ReadAt, position: int, end: int, min_offset: int) -> bool:
    head = read_at(position, HEADER_BYTES)
    header, _ = _header_at(head, 0, end - position, min_offset)
    if header is None:
        return False
    batch = read_at(position, header.size_bytes)
    return len(batch) == header.size_bytes and crc32c(memoryview(batch)[CRC_START:]) == header.crc


_WALK: Final = struct.Struct(">qi4xb6xi8xq")
"""Base offset, length, magic, last offset delta and max timestamp: the fields needed for walking."""


def walk(
    read_at: Callable[[int, int], bytes | memoryview], position: int, end: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """(position, base offset, last offset, max timestamp, size) of each batch, from the headers alone.

    Stops at the first invalid header; the caller compares the position with `end`.
    """
    chunk: bytes | memoryview = b""
    chunk_start = position
    while position + HEADER_BYTES <= end:
        at = position - chunk_start
        if at < 0 or at + HEADER_BYTES > len(chunk):
            chunk, chunk_start, at = read_at(position, min(8192, end - position)), position, 0
            if len(chunk) < HEADER_BYTES:
                return
        base_offset, length, magic, last_delta, max_timestamp = _WALK.unpack_from(chunk, at)
        size = length + LENGTH_PREFIX_BYTES
        if magic != MAGIC or size < HEADER_BYTES or position + size > end or base_offset < 0 or last_delta < 0:
            return
        yield position, base_offset, base_offset + last_delta, max_timestamp, size
        position += size
