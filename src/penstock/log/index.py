"""The sparse index of one segment, by offset and by time.

An entry describes the batch at a position: its base offset, its position, and the largest timestamp of everything
before it. Looking up an offset finds the last entry at or before it; looking up a time finds the last entry before
which everything is older. From there a reader scans the batch headers, at most one interval of bytes.

On disk the entries are in blocks, each with a checksum, appended as the segment grows; a sealed segment ends with a
summary block. A block that does not match its checksum ends the file: the rest is rebuilt from the segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

_BLOCK: Final = struct.Struct("<4sII")
_ENTRIES: Final = b"ENTR"
_ENTRY_BYTES: Final = 24
_SEAL: Final = b"SEAL"
_SEAL_CONTENT: Final = struct.Struct("<qqqqq")


class Seal(NamedTuple):
    """The summary of a sealed segment, so that it need not be read again."""

    size_bytes: int
    next_offset: int
    max_timestamp: int
    first_timestamp: int
    compacted: int
    """1 if compaction has rewritten it: offsets have gaps, and the index has an entry for every batch."""


class SparseIndex:
    __slots__ = ("_last_position", "_saved", "interval_bytes", "max_timestamps", "offsets", "positions")

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.offsets = array("q")
        self.positions = array("q")
        self.max_timestamps = array("q")
        self._last_position = -interval_bytes
        self._saved = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * _ENTRY_BYTES

    def note(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Note a batch; called for every batch in order. Keeps one entry every `interval_bytes`."""
        if position - self._last_position >= self.interval_bytes:
            self.offsets.append(offset)
            self.positions.append(position)
            self.max_timestamps.append(max_timestamp_before)
            self._last_position = position

    def position_for_offset(self, offset: int) -> int:
        """Where to start scanning for the batch that holds `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_for_time(self, timestamp: int) -> int:
        """Where to start scanning for the first record at or after `timestamp`."""
        entry = bisect_left(self.max_timestamps, timestamp) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_before(self, position: int) -> int:
        """The position of the last entry at or before `position`, where a batch is certain to start."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def offset_at(self, position: int) -> int:
        """The minimum offset of the batch at or after `position`; exact if there is an entry for it."""
        entry = bisect_right(self.positions, position) - 1
        return self.offsets[entry] if entry >= 0 else 0

    def offset_behind(self, position: int, end_offset: int) -> int:
        """An offset above everything before `position`: that of the next entry, or the segment's end."""
        entry = bisect_left(self.positions, position)
        return self.offsets[entry] if entry < len(self) else end_offset

    def has(self, offset: int, position: int) -> bool:
        entry = bisect_left(self.positions, position)
        return entry < len(self) and self.positions[entry] == position and self.offsets[entry] == offset

    def cut(self, position: int) -> bool:
        """Remove every entry at or after `position`. True if there were any."""
        keep = bisect_left(self.positions, position)
        if keep == len(self):
            return False
        del self.offsets[keep:], self.positions[keep:], self.max_timestamps[keep:]
        self._last_position = self.positions[-1] if keep else -self.interval_bytes
        self._saved = min(self._saved, keep)
        return True

    def mark_unsaved(self) -> None:
        """Note that the file is gone: the next `take_unsaved` returns everything."""
        self._saved = 0

    def take_unsaved(self) -> bytes:
        """The entries since the last call, as a block to append to the file; empty if there are none."""
        columns = (self.offsets, self.positions, self.max_timestamps)
        content = b"".join(_little_endian(column[self._saved :]).tobytes() for column in columns)
        self._saved = len(self)
        return _block(_ENTRIES, content) if content else b""


def seal_block(seal: Seal) -> bytes:
    return _block(_SEAL, _SEAL_CONTENT.pack(*seal))


def load_index(data: bytes, interval_bytes: int) -> tuple[SparseIndex, Seal | None, bool]:
    """The index up to its first damaged block, the seal if there is one, and whether all blocks are intact."""
    index = SparseIndex(interval_bytes)
    seal: Seal | None = None
    position = 0
    while position + _BLOCK.size <= len(data):
        tag, length, crc = _BLOCK.unpack_from(data, position)
        content = data[position + _BLOCK.size : position + _BLOCK.size + length]
        if len(content) != length or crc32c(content) != crc or not _take_block(index, tag, content):
            break
        if tag == _SEAL:
            seal = Seal._make(_SEAL_CONTENT.unpack(content))
        position += _BLOCK.size + length
    index._saved = len(index)
    if len(index):
        index._last_position = index.positions[-1]
    return index, seal, position == len(data)


def read_seal(tail: bytes) -> Seal | None:
    block = tail[-(_BLOCK.size + _SEAL_CONTENT.size) :]
    if len(block) < _BLOCK.size + _SEAL_CONTENT.size:
        return None
    tag, length, crc = _BLOCK.unpack_from(block)
    content = block[_BLOCK.size :]
    if tag != _SEAL or length != len(content) or crc32c(content) != crc:
        return None
    return Seal._make(_SEAL_CONTENT.unpack(content))


def _take_block(index: SparseIndex, tag: bytes, content: bytes) -> bool:
    if tag == _SEAL:
        return len(content) == _SEAL_CONTENT.size
    if tag != _ENTRIES or len(content) % _ENTRY_BYTES:
        return False
    third = len(content) // 3
    for number, column in enumerate((index.offsets, index.positions, index.max_timestamps)):
        part = array("q")
        part.frombytes(content[number * third : (number + 1) * third])
        column.extend(_little_endian(part))
    return True


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


def _block(tag: bytes, content: bytes) -> bytes:
    return _BLOCK.pack(tag, len(content), crc32c(content)) + content
