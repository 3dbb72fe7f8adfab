"""The data between the steps of decoding: the position of every key, value and header in a buffer.

No step copies a key or a value. They are (position, size) pairs in plain arrays, and only the last step turns these
into Arrow columns. An engine is a module that finds them: `by_numpy` or `by_numba`. Both must give the same answer and
refuse the same damage; neither may read a byte outside of the buffer, whatever the bytes say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

SMALLEST_RECORD_BYTES: Final = 7
"""Length, attributes, timestamp, offset, key, value and header count, of one byte each."""
SMALLEST_HEADER_BYTES: Final = 2
VARINT_BYTES: Final = 5
VARLONG_BYTES: Final = 10
VIEW_BYTES: Final = 16
INLINE_BYTES: Final = 12
"""A view stores values up to this size itself; of larger ones it stores the first four bytes and their position."""
PREFIX_BYTES: Final = 4
MOST_BYTES: Final = 2**31 - 1
"""The most data that one set of columns can point into: positions in Arrow's views and offsets have 31 bits."""

OUTSIDE_BATCH: Final = 1
WRONG_LENGTH: Final = 2
WRONG_OFFSET: Final = 3
LEFT_OVER: Final = 4
WRONG_HEADERS: Final = 5
REASONS: Final = {
    OUTSIDE_BATCH: "a record reaches past the end of its batch",
    WRONG_LENGTH: "a record's fields do not fill the length it claims",
    WRONG_OFFSET: "a record's offset does not follow the one before it, or is beyond the batch's last",
    LEFT_OVER: "bytes follow the last record",
    WRONG_HEADERS: "a record's headers do not fill the length it claims",
}


class _Damaged(Exception):
    def __init__(self, index: int, reason: int) -> None:
        super().__init__(REASONS[reason])
        self.index = index
        self.reason = reason


class DamagedBatch(_Damaged):
    """The batch at `index` of those passed to `Engine.records` does not match its header; the caller names it."""


class DamagedRecord(_Damaged):
    """The record at `index` of those passed to `Engine.headers` is damaged; the caller names it."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches to decode, in the order of their offsets, as one array per field."""

    data: Bytes
    """The data that `begin` and `end` are positions in: a part of the file, or what was decompressed from it."""
    begin: Longs
    end: Longs
    count: Longs
    base_offset: Longs
    last_delta: Longs
    base_timestamp: Longs
    """The timestamp that is added to a record's own; with the broker's time, the batch's largest."""
    own_time: Longs
    """1 if records have their own time, 0 if the broker's time applies to the whole batch."""

    def cut(self, count: int) -> Batches:
        return Batches(self.data, *(getattr(self, field.name)[:count] for field in fields(self)[1:]))


@dataclass(frozen=True, slots=True)
class Records:
    """One row for each record. Positions are in `Batches.data`."""

    offset: Longs
    timestamp: Longs
    key_at: Longs
    key_size: Ints
    value_at: Longs
    value_size: Ints
    headers_at: Longs
    headers_end: Longs
    headers_count: Ints

    @classmethod
    def empty(cls, count: int) -> Records:
        """Allocate that many rows, for an engine to fill."""
        return cls(
            offset=np.empty(count, np.int64),
            timestamp=np.empty(count, np.int64),
            key_at=np.empty(count, np.int64),
            key_size=np.empty(count, np.int32),
            value_at=np.empty(count, np.int64),
            value_size=np.empty(count, np.int32),
            headers_at=np.empty(count, np.int64),
            headers_end=np.empty(count, np.int64),
            headers_count=np.empty(count, np.int32),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def rows_between(self, start: int | None, stop: int | None) -> slice:
        """The rows with offsets from `start` up to, not including, `stop`. Offsets ascend."""
        low = 0 if start is None else int(np.searchsorted(self.offset, start))
        high = len(self) if stop is None else int(np.searchsorted(self.offset, stop))
        return slice(low, max(low, high))

    def cut(self, rows: slice) -> Records:
        return Records(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Headers:
    name_at: Longs
    name_size: Ints
    value_at: Longs
    value_size: Ints

    @classmethod
    def empty(cls, count: int) -> Headers:
        return cls(
            name_at=np.empty(count, np.int64),
            name_size=np.empty(count, np.int32),
            value_at=np.empty(count, np.int64),
            value_size=np.empty(count, np.int32),
        )


class Engine(Protocol):
    """The three loops that touch every record."""

    def records(self, batches: Batches) -> Records:
        """Find the parts of every record. Raises DamagedBatch.

        A record must lie within its batch and be filled by its fields, offsets must ascend and stay within the batch's
        range, and the last record must end where its batch does. The contents of the headers are left to `headers`.
        """

    def headers(self, data: Bytes, records: Records) -> Headers:
        """Find the parts of every header; they must fill the space that their record leaves. Raises DamagedRecord."""

    def views(self, data: Bytes, at: Longs, size: Ints) -> Bytes:
        """The spans as Arrow view structs of 16 bytes per row. Null ones are all zero."""
