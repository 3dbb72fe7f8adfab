"""The aborted transactions of a partition: which records a `read_committed` reader must leave out.

One entry per transaction that was rolled back after it had written here, in the order of the markers. The file is an
append-only list of entries with a checksum each; whatever is damaged or missing is found again by reading the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

_ENTRY: Final = struct.Struct(">qqq")
_CRC: Final = struct.Struct(">I")
_STRIDE: Final = _ENTRY.size + _CRC.size
FILE_NAME: Final = "aborted.index"


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""


class AbortedTransactions:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._entries: list[AbortedTransaction] = []
        self._markers: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, before_offset: int) -> bool:
        """Read the entries whose marker stands before `before_offset`. False if the file is damaged."""
        self.clear()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return True
        for position in range(0, len(data) - _STRIDE + 1, _STRIDE):
            content = data[position : position + _ENTRY.size]
            if crc32c(content) != _CRC.unpack_from(data, position + _ENTRY.size)[0]:
                self.clear()
                return False
            entry = AbortedTransaction._make(_ENTRY.unpack(content))
            if entry.last_offset < before_offset:
                self.add(entry)
        return True

    def add(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)
        self._markers.append(entry.last_offset)

    def append_to_file(self, entry: AbortedTransaction) -> None:
        """Say it to readers in other processes too. A crash may lose it; recovery reads it from the log again."""
        with self._path.open("ab") as file:
            file.write(_encode(entry))

    def rewrite_file(self) -> None:
        """Make the file hold exactly what is in memory."""
        if self._entries:
            replacement = self._path.with_suffix(".new")
            replacement.write_bytes(b"".join(map(_encode, self._entries)))
            replacement.rename(self._path)
        else:
            self._path.unlink(missing_ok=True)

    def between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those with records in `[first_offset, end_offset)`."""
        start = bisect_left(self._markers, first_offset)
        return [entry for entry in self._entries[start:] if entry.first_offset < end_offset]

    def drop_before(self, offset: int) -> bool:
        """Forget those that end before `offset`. True if there were any."""
        keep = bisect_left(self._markers, offset)
        del self._entries[:keep], self._markers[:keep]
        return keep > 0

    def extend(self, entries: Iterable[AbortedTransaction]) -> None:
        for entry in entries:
            self.add(entry)

    def clear(self) -> None:
        self._entries.clear()
        self._markers.clear()


def _encode(entry: AbortedTransaction) -> bytes:
    content = _ENTRY.pack(*entry)
    return content + _CRC.pack(crc32c(content))
