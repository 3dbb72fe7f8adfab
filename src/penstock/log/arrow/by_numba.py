"""The numba engine: one compiled pass over the bytes, record by record.

Importing this module compiles it, which takes seconds the first time; the machine code is cached on disk, beside this
file or in the user's cache folder, so that the next process starts in well under a second. If neither is writable, each
process compiles for itself.

The loops release the GIL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from penstock.log.arrow.spans import (
    INLINE_BYTES,
    LEFT_OVER,
    OUTSIDE_BATCH,
    PREFIX_BYTES,
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

Number = int | np.int64
"""Every number in compiled code has 64 bits."""

_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS_IN = types.Array(types.int64, 1, "C", readonly=True)
_INTS_IN = types.Array(types.int32, 1, "C", readonly=True)
_LONGS_OUT = types.Array(types.int64, 1, "C")
_INTS_OUT = types.Array(types.int32, 1, "C")
_BYTES_OUT = types.Array(types.uint8, 2, "C")
_WORDS_OUT = types.Array(types.int32, 2, "C")
_FOUND = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
_SPANS_OUT = (_LONGS_OUT, _INTS_OUT)

_LAST_SHIFT = 7 * (VARINT_BYTES - 1)
_LAST_BITS = 0x0F
_LAST_LONG_SHIFT = 7 * (VARLONG_BYTES - 1)
_LAST_LONG_BITS = 0x01
_ALL_BUT_SIGN = 0x7FFFFFFFFFFFFFFF


def _compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for these types now, and cache the result on disk if possible."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        compiler = functools.partial(numba.njit, signature, nogil=True, error_model="numpy")
        try:
            return compiler(cache=True)(function)
        except (RuntimeError, OSError):
            # numba found no writable folder (RuntimeError), or that folder is full.
            return compiler()(function)

    return compile_it


@numba.njit(forceinline=True)
def _varint(data: Bytes, at: Number, end: Number, last_shift: int, last_bits: int) -> tuple[Number, Number]:
    """The number at `at` and where it ends; the end is -1 if it is cut off or too long."""
    if at >= end:
        return 0, -1
    byte = np.int64(data[at])
    at += 1
    bits = byte & 0x7F
    shift = 0
    while byte > 0x7F:
        shift += 7
        if at >= end or shift > last_shift:
            return 0, -1
        byte = np.int64(data[at])
        at += 1
        if shift == last_shift and byte > last_bits:
            return 0, -1
        bits |= (byte & 0x7F) << shift
    return ((bits >> 1) & _ALL_BUT_SIGN) ^ -(bits & 1), at


@numba.njit(forceinline=True)
def _span(data: Bytes, at: Number, end: Number) -> tuple[Number, Number, Number]:
    """A size, where its bytes begin, and where they end; the end is -1 if it is out of range."""
    size, at = _varint(data, at, end, _LAST_SHIFT, _LAST_BITS)
    if at < 0:
        return 0, 0, -1
    if size < 0:
        return size, at, at
    if size > end - at:
        return 0, 0, -1
    return size, at, at + size


@_compiled(_FOUND(_BYTES_IN, *[_LONGS_IN] * 7, *[_LONGS_OUT] * 2, *_SPANS_OUT, *_SPANS_OUT, _LONGS_OUT, *_SPANS_OUT))
def _find_records(
    data: Bytes,
    begin: Longs,
    ends: Longs,
    count: Longs,
    base_offset: Longs,
    last_delta: Longs,
    base_timestamp: Longs,
    own_time: Longs,
    offset: Longs,
    timestamp: Longs,
    key_at: Longs,
    key_size: Ints,
    value_at: Longs,
    value_size: Ints,
    headers_at: Longs,
    headers_end: Longs,
    headers_count: Ints,
) -> tuple[int, int]:
    row = 0
    for batch in range(len(begin)):
        at = begin[batch]
        batch_end = ends[batch]
        delta_before: Number = -1
        for _ in range(count[batch]):
            length, at = _varint(data, at, batch_end, _LAST_SHIFT, _LAST_BITS)
            if at < 0 or length < 1 or length > batch_end - at:
                return batch, OUTSIDE_BATCH
            end = at + length
            delta, at = _varint(data, at + 1, end, _LAST_LONG_SHIFT, _LAST_LONG_BITS)
            if at < 0:
                return batch, WRONG_LENGTH
            timestamp[row] = base_timestamp[batch] + delta * own_time[batch]
            delta, at = _varint(data, at, end, _LAST_SHIFT, _LAST_BITS)
            if at < 0:
                return batch, WRONG_LENGTH
            if delta <= delta_before or delta > last_delta[batch]:
                return batch, WRONG_OFFSET
            delta_before = delta
            offset[row] = base_offset[batch] + delta
            size, key_at[row], at = _span(data, at, end)
            if at < 0:
                return batch, WRONG_LENGTH
            key_size[row] = size
            size, value_at[row], at = _span(data, at, end)
            if at < 0:
                return batch, WRONG_LENGTH
            value_size[row] = size
            number, at = _varint(data, at, end, _LAST_SHIFT, _LAST_BITS)
            if at < 0 or number < 0 or number > (end - at) // SMALLEST_HEADER_BYTES or (number == 0 and at != end):
                return batch, WRONG_LENGTH
            headers_at[row] = at
            headers_end[row] = end
            headers_count[row] = number
            at = end
            row += 1
        if at != batch_end:
            return batch, LEFT_OVER
    return -1, 0


@_compiled(types.int64(_BYTES_IN, *[_LONGS_IN] * 2, _INTS_IN, *_SPANS_OUT, *_SPANS_OUT))
def _find_headers(
    data: Bytes,
    headers_at: Longs,
    headers_end: Longs,
    headers_count: Ints,
    name_at: Longs,
    name_size: Ints,
    value_at: Longs,
    value_size: Ints,
) -> int:
    row = 0
    for record in range(len(headers_at)):
        at = headers_at[record]
        end = headers_end[record]
        for _ in range(headers_count[record]):
            size, name_at[row], at = _span(data, at, end)
            if at < 0 or size < 0:
                return record
            name_size[row] = size
            size, value_at[row], at = _span(data, at, end)
            if at < 0:
                return record
            value_size[row] = size
            row += 1
        if at != end:
            return record
    return -1


@_compiled(types.void(_BYTES_IN, _LONGS_IN, _INTS_IN, _BYTES_OUT, _WORDS_OUT))
def _fill_views(data: Bytes, at: Longs, size: Ints, views: Bytes, words: Ints) -> None:
    for row in range(len(at)):
        begin = at[row]
        length = size[row]
        if length > INLINE_BYTES:
            words[row, 0] = length
            for byte in range(PREFIX_BYTES):
                views[row, 4 + byte] = data[begin + byte]
            words[row, 2] = 0
            words[row, 3] = begin
        else:
            words[row, 0] = max(length, 0)
            for word in range(1, 4):
                words[row, word] = 0
            for byte in range(length):
                views[row, 4 + byte] = data[begin + byte]


def records(batches: Batches) -> Records:
    found = Records.empty(int(batches.count.sum()))
    index, reason = _find_records(
        batches.data,
        batches.begin,
        batches.end,
        batches.count,
        batches.base_offset,
        batches.last_delta,
        batches.base_timestamp,
        batches.own_time,
        found.offset,
        found.timestamp,
        found.key_at,
        found.key_size,
        found.value_at,
        found.value_size,
        found.headers_at,
        found.headers_end,
        found.headers_count,
    )
    if index >= 0:
        raise DamagedBatch(index, reason)
    return found


def headers(data: Bytes, records: Records) -> Headers:
    found = Headers.empty(int(records.headers_count.sum(dtype=np.int64)))
    index = _find_headers(
        data,
        records.headers_at,
        records.headers_end,
        records.headers_count,
        found.name_at,
        found.name_size,
        found.value_at,
        found.value_size,
    )
    if index >= 0:
        raise DamagedRecord(index, WRONG_HEADERS)
    return found


def views(data: Bytes, at: Longs, size: Ints) -> Bytes:
    filled = np.empty((len(at), VIEW_BYTES), np.uint8)
    _fill_views(data, at, size, filled, filled.view(np.int32))
    return filled
