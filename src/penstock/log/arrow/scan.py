"""Finding the batches of a buffer to decode; each is verified before anything in it is used."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import CorruptBatchError, CorruptSegmentError
from penstock.log.aborted import AbortedTransaction
from penstock.log.arrow.spans import MOST_BYTES, SMALLEST_RECORD_BYTES, Batches
from penstock.log.batches.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    check_crc,
    read_header,
)
from penstock.log.batches.compression import NONE, decompress

_LAST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BufferOrigin:
    """Where a buffer comes from, for error messages, and what is known about it."""

    file: str = "<buffer>"
    position: int = 0
    """Where in the file the buffer begins."""
    dense: bool = False
    """No offset is missing between two batches, as in every segment that was never compacted. This confirms the base
    offsets, which no checksum covers."""
    whole: bool = False
    """The last batch must be complete, as in every segment that is no longer written to."""

    def damage(self, position: int, offset: int, reason: str) -> CorruptSegmentError:
        return CorruptSegmentError(self.file, self.position + position, offset, reason)


class FoundBatches(NamedTuple):
    position: int
    header: BatchHeader


def scan(
    buffer: memoryview, origin: BufferOrigin, stop: int | None, aborted: Iterable[AbortedTransaction], verify: bool
) -> Iterator[FoundBatches]:
    """The batches with records for a reader of committed data, up to offset `stop`.

    Everything up to there is checked, even what is then left out, because the batch itself decides that. What follows
    is not read.
    """
    rolled_back = _Aborted(aborted)
    position = next_offset = 0
    while position < len(buffer) and (stop is None or next_offset < stop):
        left_bytes = len(buffer) - position
        header = _whole_header(buffer, position, origin)
        if header is None:
            if origin.whole:
                raise origin.damage(position, next_offset, f"it is incomplete, with {left_bytes} bytes left")
            return
        if stop is not None and header.base_offset >= stop:
            return
        reason = _fault(header, next_offset, exact=origin.dense and position > 0)
        if reason is None and verify:
            try:
                check_crc(buffer[position : position + header.size_bytes])
            except CorruptBatchError as error:
                reason = str(error)
        if reason is not None:
            raise origin.damage(position, header.base_offset, reason)
        if header.record_count and not header.is_control and not rolled_back.holds(header):
            yield FoundBatches(position, header)
        position += header.size_bytes
        next_offset = header.next_offset


def _whole_header(buffer: memoryview, position: int, origin: BufferOrigin) -> BatchHeader | None:
    """The header of the batch that begins here, or None if the buffer ends before the batch does."""
    left_bytes = len(buffer) - position
    if left_bytes < HEADER_BYTES:
        return None
    header = read_header(buffer, position)
    if header.magic != MAGIC:
        raise origin.damage(position, header.base_offset, f"format version {header.magic} instead of {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise origin.damage(position, header.base_offset, f"an impossible length of {header.length} bytes")
    return header if header.size_bytes <= left_bytes else None


def _fault(header: BatchHeader, next_offset: int, *, exact: bool) -> str | None:
    """What is impossible in a header, if anything."""
    if header.base_offset < next_offset or (exact and header.base_offset != next_offset):
        return f"its offset does not follow the one before it: {next_offset} was expected"
    if not 0 <= header.last_offset_delta <= _LAST_OFFSET - 1 - header.base_offset:
        return f"an impossible last offset delta of {header.last_offset_delta}"
    if header.record_count < 0:
        return f"an impossible count of {header.record_count} records"
    return None


class Gathered(NamedTuple):
    """Batches that are decoded together, and the position of each in the buffer."""

    batches: Batches
    found: list[FoundBatches]

    def cut(self, count: int) -> Gathered:
        return Gathered(self.batches.cut(count), self.found[:count])


def in_chunks(
    buffer: memoryview, found: Iterator[FoundBatches], origin: BufferOrigin, start: int | None, chunk_bytes: int
) -> Iterator[Gathered]:
    """Collect decompressed batches until they hold `chunk_bytes`; those that end before `start` are left out.

    If a batch is damaged, what was collected before it is returned first.
    """
    chunk = _Chunk(buffer)
    damage: CorruptSegmentError | None = None
    while True:
        try:
            batch = next(found, None)
            if batch is None:
                break
            if start is not None and batch.header.last_offset < start:
                continue
            section = _section(buffer, batch, origin)
        except CorruptSegmentError as error:
            damage = error
            break
        if chunk.found and not chunk.has_room(batch, len(section)):
            yield chunk.gathered()
            chunk = _Chunk(buffer)
        chunk.add(batch, section)
        if chunk.size_bytes >= chunk_bytes:
            yield chunk.gathered()
            chunk = _Chunk(buffer)
    if chunk.found:
        yield chunk.gathered()
    if damage is not None:
        raise damage


def _section(buffer: memoryview, batch: FoundBatches, origin: BufferOrigin) -> bytes | memoryview:
    """The batch's records, as their own bytes if they were compressed."""
    position, header = batch
    section: bytes | memoryview = buffer[position + HEADER_BYTES : position + header.size_bytes]
    if header.codec != NONE:
        try:
            section = decompress(header.codec, section, MAX_DECOMPRESSED_BYTES)
        except CorruptBatchError as error:
            raise origin.damage(position, header.base_offset, str(error)) from error
    if header.record_count > len(section) // SMALLEST_RECORD_BYTES:
        reason = f"{header.record_count} records cannot be in {len(section)} bytes"
        raise origin.damage(position, header.base_offset, reason)
    return section


class _Chunk:
    """Batches that are decoded together, directly from the file if none of them is compressed."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._sections: list[bytes | memoryview] = []
        self.found: list[FoundBatches] = []
        self.size_bytes = 0

    def has_room(self, batch: FoundBatches, section_bytes: int) -> bool:
        reach_bytes = batch.position + batch.header.size_bytes - self.found[0].position
        return max(self.size_bytes + section_bytes, reach_bytes) <= MOST_BYTES

    def add(self, batch: FoundBatches, section: bytes | memoryview) -> None:
        self.found.append(batch)
        self._sections.append(section)
        self.size_bytes += len(section)

    def gathered(self) -> Gathered:
        sizes = np.fromiter(map(len, self._sections), np.int64, len(self._sections))
        headers = [batch.header for batch in self.found]
        if all(header.codec == NONE for header in headers):
            first, last = self.found[0], self.found[-1]
            data = np.frombuffer(self._buffer, np.uint8)[first.position : last.position + last.header.size_bytes]
            begin = _longs(batch.position - first.position + HEADER_BYTES for batch in self.found)
        else:
            data = np.frombuffer(b"".join(self._sections), np.uint8)
            begin = np.cumsum(sizes) - sizes
        appended = [bool(header.attributes & LOG_APPEND_TIME) for header in headers]
        times = (h.max_timestamp if late else h.base_timestamp for h, late in zip(headers, appended, strict=True))
        batches = Batches(
            data=data,
            begin=begin,
            end=begin + sizes,
            count=_longs(header.record_count for header in headers),
            base_offset=_longs(header.base_offset for header in headers),
            last_delta=_longs(header.last_offset_delta for header in headers),
            base_timestamp=_longs(times),
            own_time=_longs(not late for late in appended),
        )
        return Gathered(batches, self.found)


class _Aborted:
    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, last_offset in sorted(transactions):
            firsts, lasts = self._of.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            lasts.append(last_offset)

    def holds(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.producer_id not in self._of:
            return False
        firsts, lasts = self._of[header.producer_id]
        # Transactions of one producer follow each other, so only the last that began before can still be open.
        i = bisect_right(firsts, header.base_offset) - 1
        return i >= 0 and header.base_offset <= lasts[i]


def _longs(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)
