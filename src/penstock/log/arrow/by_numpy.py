"""The numpy engine: every step is done for many records at once.

Only one thing in a batch is sequential: where a record begins follows from the length of the one before it. If there
are many batches, they are walked in step, one record of each at a time; the last few are walked by a plain loop.
Everything else happens to whole columns, in blocks that fit the cache.

What can be checked once at the end is not checked along the way. Reads are clipped to the buffer, so a wrong length
leads to a wrong position but never outside; and because no field goes backwards, a record whose fields end exactly at
its end, and a batch whose records end exactly at its end, had all of them inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.log.arrow.spans import (
    INLINE_BYTES,
    LEFT_OVER,
    OUTSIDE_BATCH,
    SMALLEST_HEADER_BYTES,
    VARINT_BYTES,
    VARLONG_BYTES,
    VIEW_BYTES,
    WRONG_HEADERS,
    WRONG_LENGTH,
    WRONG_OFFSET,
    Batches,
    Bytes,
    DamagedBatch,
    DamagedRecord,
    Headers,
    Ints,
    Longs,
    Records,
)

_BLOCK_ROWS = 16 * 1024
_IN_STEP = 100
"""With fewer batches, walking in step costs more than walking each by itself."""

_LAST_BITS = {VARINT_BYTES: 0x0F, VARLONG_BYTES: 0x01}
"""The allowed bits in the last byte of the longest number: what is left of 32 or 64."""

_ALL_BUT_SIGN = np.int64(0x7FFFFFFFFFFFFFFF)

_KEPT = np.tri(INLINE_BYTES + 1, INLINE_BYTES, -1, dtype=np.uint8) * np.uint8(0xFF)
"""Row n is the mask that keeps n bytes of a view's inline part."""


class _TooLong(Exception):
    """The number of the row has more bits than its type."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def records(batches: Batches) -> Records:
    starts = _starts(batches)
    found = Records.empty(len(starts))
    for low, high, first, last, rows_of in _blocks(batches.count):
        within = slice(first, last)
        try:
            reason = _fill_records(batches, within, rows_of, starts[low:high], found, slice(low, high))
        except _TooLong as error:
            raise DamagedBatch(first + _owner(rows_of, error.row), WRONG_LENGTH) from None
        if reason is not None:
            bad, code = reason
            raise DamagedBatch(first + _owner(rows_of, bad), code)
    backwards = np.flatnonzero(found.offset[1:] <= found.offset[:-1])
    if backwards.size:
        raise DamagedBatch(_owner(batches.count, int(backwards[0]) + 1), WRONG_OFFSET)
    return found


def _blocks(count: Longs) -> Iterator[tuple[int, int, int, int, Longs]]:
    """Cut the rows of all batches into blocks: rows from, to, batches from, to, and rows of each batch in the block."""
    bounds = np.cumsum(count)
    total = int(bounds[-1]) if len(bounds) else 0
    for low in range(0, total, _BLOCK_ROWS):
        high = min(low + _BLOCK_ROWS, total)
        first = int(np.searchsorted(bounds, low, side="right"))
        last = int(np.searchsorted(bounds, high - 1, side="right")) + 1
        ends = bounds[first:last]
        yield low, high, first, last, np.minimum(ends, high) - np.maximum(ends - count[first:last], low)


def _fill_records(
    batches: Batches, within: slice, rows_of: Longs, starts: Longs, found: Records, rows: slice
) -> tuple[int, int] | None:
    """Find the parts of a block of records; returns the first damaged one, and why, if there is one."""
    data = batches.data

    def spread(column: Longs) -> Longs:
        return np.repeat(column[within], rows_of)

    length, at = _varint(data, starts, VARINT_BYTES)
    end = at + length
    delta, at = _varint(data, at + 1, VARLONG_BYTES)
    found.timestamp[rows] = spread(batches.base_timestamp) + delta * spread(batches.own_time)
    delta, at = _varint(data, at, VARINT_BYTES)
    found.offset[rows] = spread(batches.base_offset) + delta
    wrong_offset = (delta < 0) | (delta > spread(batches.last_delta))
    size, at = _varint(data, at, VARINT_BYTES)
    found.key_size[rows] = size
    found.key_at[rows] = at
    at += np.maximum(size, 0)
    size, at = _varint(data, at, VARINT_BYTES)
    found.value_size[rows] = size
    found.value_at[rows] = at
    at += np.maximum(size, 0)
    number, at = _varint(data, at, VARINT_BYTES)
    found.headers_count[rows] = number
    found.headers_at[rows] = at
    found.headers_end[rows] = end
    wrong_length = np.where(number == 0, at != end, (number < 0) | (number > (end - at) // SMALLEST_HEADER_BYTES))
    for wrong, code in ((wrong_length, WRONG_LENGTH), (wrong_offset, WRONG_OFFSET)):
        if wrong.any():
            return int(wrong.argmax()), code
    return None


def _starts(batches: Batches) -> Longs:
    """Where each record begins, if the lengths before it are correct."""
    data, count = batches.data, batches.count
    starts = np.empty(int(count.sum()), np.int64)
    order = np.argsort(-count, kind="stable")
    going = count[order]
    at = batches.begin[order]
    rows = (np.cumsum(count) - count)[order]
    steps = int(going[_IN_STEP - 1]) if len(going) >= _IN_STEP else 0
    widths = np.searchsorted(-going, -np.arange(steps)).tolist()
    try:
        for step, width in enumerate(widths):
            starts[rows[:width] + step] = at[:width]
            length, after = _varint(data, at[:width], VARINT_BYTES)
            at[:width] = after + length
    except _TooLong as error:
        raise DamagedBatch(int(order[error.row]), OUTSIDE_BATCH) from None
    for i in range(int(np.searchsorted(-going, -steps))):
        batch = int(order[i])
        begin, end = int(at[i]), int(batches.end[batch])
        section = data[max(begin, 0) : end].tobytes()
        try:
            walked, reached = _walk(section, int(going[i]) - steps)
        except IndexError:
            raise DamagedBatch(batch, OUTSIDE_BATCH) from None
        row = int(rows[i]) + steps
        starts[row : row + len(walked)] = walked
        starts[row : row + len(walked)] += begin
        at[i] = begin + reached
    astray = np.flatnonzero(at != batches.end[order])
    if astray.size:
        batch = int(order[astray].min())
        raise DamagedBatch(batch, LEFT_OVER if at[order == batch][0] < batches.end[batch] else OUTSIDE_BATCH)
    return starts


def _walk(section: bytes, count: int) -> tuple[list[int], int]:
    """Where each record of a section begins, and where the last one ends. Raises IndexError past the end. The sign of a
    length is ignored, so that every step goes forward: no fields can fill a negative one."""
    starts: list[int] = []
    found = starts.append
    at = 0
    for _ in range(count):
        found(at)
        byte = section[at]
        if byte < 0x80:
            at += 1 + (byte >> 1)
            continue
        second = section[at + 1]
        if second < 0x80:
            at += 2 + ((byte & 0x7F | second << 7) >> 1)
            continue
        size, at = _read_varint(section, at)
        at += max(size, 0)
    return starts, at


def _read_varint(section: bytes, at: int) -> tuple[int, int]:
    bits = 0
    for shift in range(0, 7 * VARINT_BYTES, 7):
        byte = section[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            if bits >> 32:
                break
            return (bits >> 1) ^ -(bits & 1), at
    raise IndexError("a number has more than 32 bits")


def _varint(data: Bytes, at: Longs, longest: int) -> tuple[Longs, Longs]:
    """The numbers at these positions, and the positions after them."""
    byte = data.take(at, mode="clip")
    after = at + 1
    bits = byte.astype(np.int64)
    more = byte > 0x7F
    if more.any():
        bits &= 0x7F
        rows: Longs | slice = slice(None) if more.all() else np.flatnonzero(more)
        for shift in range(7, 7 * longest, 7):
            byte = data.take(after[rows], mode="clip")
            after[rows] += 1
            if shift == 7 * (longest - 1):
                wrong = byte > _LAST_BITS[longest]
                if wrong.any():
                    row = int(wrong.argmax())
                    raise _TooLong(row if isinstance(rows, slice) else int(rows[row]))
            bits[rows] |= (byte & 0x7F).astype(np.int64) << shift
            more = byte > 0x7F
            if not more.any():
                break
            if not (isinstance(rows, slice) and more.all()):
                rows = np.flatnonzero(more) if isinstance(rows, slice) else rows[more]
    sign = -(bits & 1)
    bits >>= 1
    if longest == VARLONG_BYTES:
        bits &= _ALL_BUT_SIGN
    bits ^= sign
    return bits, after


def headers(data: Bytes, records: Records) -> Headers:
    count = records.headers_count.astype(np.int64)
    found = Headers.empty(int(count.sum()))
    order = np.argsort(-count, kind="stable")
    going = count[order]
    at, end = records.headers_at[order], records.headers_end[order]
    rows = (np.cumsum(count) - count)[order]
    steps = int(going[_IN_STEP - 1]) if len(going) >= _IN_STEP else 0
    widths = np.searchsorted(-going, -np.arange(steps)).tolist()
    negative = np.zeros(len(going), np.bool_)
    try:
        for step, width in enumerate(widths):
            row = rows[:width] + step
            size, after = _varint(data, at[:width], VARINT_BYTES)
            negative[:width] |= size < 0
            found.name_at[row] = after
            found.name_size[row] = size
            size, after = _varint(data, after + size, VARINT_BYTES)
            found.value_at[row] = after
            found.value_size[row] = size
            at[:width] = after + np.maximum(size, 0)
    except _TooLong as error:
        raise DamagedRecord(int(order[error.row]), WRONG_HEADERS) from None
    for i in range(int(np.searchsorted(-going, -steps))):
        begin = int(at[i])
        section = data[max(begin, 0) : int(end[i])].tobytes()
        try:
            reached = _walk_headers(section, begin, int(rows[i]) + steps, int(going[i]) - steps, found)
        except IndexError:
            raise DamagedRecord(int(order[i]), WRONG_HEADERS) from None
        at[i] = begin + reached
    wrong = (at != end) | negative
    if wrong.any():
        raise DamagedRecord(int(order[wrong.argmax()]), WRONG_HEADERS)
    return found


def _walk_headers(section: bytes, begin: int, row: int, count: int, found: Headers) -> int:
    """Find the headers of one record, whose bytes are `section`; returns where the last one ends."""
    at = 0
    for i in range(row, row + count):
        size, at = _read_varint(section, at)
        if size < 0:
            raise IndexError("a header has no name")
        found.name_at[i], found.name_size[i] = begin + at, size
        size, at = _read_varint(section, at + size)
        found.value_at[i], found.value_size[i] = begin + at, size
        at += max(size, 0)
    return at


def views(data: Bytes, at: Longs, size: Ints) -> Bytes:
    filled = np.empty((len(at), VIEW_BYTES), np.uint8)
    for low in range(0, len(at), _BLOCK_ROWS):
        rows = slice(low, low + _BLOCK_ROWS)
        _fill_views(data, at[rows], np.maximum(size[rows], 0), filled[rows])
    return filled


def _fill_views(data: Bytes, at: Longs, size: Ints, filled: Bytes) -> None:
    words = filled.view(np.int32)
    words[:, 0] = size
    large = size > INLINE_BYTES
    if large.any():
        begin = at if large.all() else np.where(large, at, 0)
        words[:, 1] = _each_as(np.dtype("=i4"), data)[begin]
        words[:, 2] = 0
        words[:, 3] = begin
    if not large.all():
        filled[~large, VIEW_BYTES - INLINE_BYTES :] = 0
        small = np.flatnonzero(~large & (size > 0))
        if small.size:
            filled[small, VIEW_BYTES - INLINE_BYTES :] = _inline_parts(data, at[small], size[small])


def _inline_parts(data: Bytes, at: Longs, size: Ints) -> Bytes:
    """The first bytes of values that fit into a view, followed by zeros."""
    # Reading 12 bytes of a shorter value may run past the end of the buffer, so its last bytes are read from a copy.
    tail = max(len(data) - INLINE_BYTES + 1, 0)
    padded = np.concatenate([data[tail:], np.zeros(INLINE_BYTES, np.uint8)])
    near_end = at >= tail
    parts = _each_as(np.dtype((np.void, INLINE_BYTES)), padded)[np.where(near_end, at - tail, 0)]
    inside = ~near_end
    if inside.any():
        parts[inside] = _each_as(np.dtype((np.void, INLINE_BYTES)), data)[at[inside]]
    return parts.view(np.uint8).reshape(-1, INLINE_BYTES) & _KEPT[size]


def _each_as(dtype: np.dtype[Any], data: Bytes) -> npt.NDArray[Any]:
    """The value of this type at every byte of the data: an array that overlaps itself."""
    return np.ndarray(len(data) - dtype.itemsize + 1, dtype, data, strides=1)


def _owner(rows_of: Longs, row: int) -> int:
    """The owner of a row, given how many rows each owner has."""
    return int(np.searchsorted(np.cumsum(rows_of), row, side="right"))
