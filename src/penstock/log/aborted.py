"""The aborted transactions of a partition, whose records a `read_committed` reader must leave out.

One entry per transaction that wrote here and was aborted, in the order of the markers. The file is an append-only list
of entries, each with a checksum; damaged or missing entries are restored by reading the log. The partition's checkpoint
holds a checksum of all entries, which shows if some are missing.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.disk import Disk
from penstock.log.statefile import TEMPORARY_SUFFIX

_ENTRY: Final = struct.Struct(">qqq")
_CRC: Final = struct.Struct(">I")
_STRIDE: Final = _ENTRY.size + _CRC.size
FILE_NAME: Final = "aborted-transactions"


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
        self._unsynced = False
        self._differs = False

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, start_offset: int, before_offset: int) -> bool:
        """Read the entries whose marker is in `[start_offset, before_offset)`. False if the file is damaged."""
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
            if start_offset <= entry.last_offset < before_offset:
                self.add(entry)
        return True

    def checksum(self) -> int:
        return crc32c(self._encoded())

    def add(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)
        self._markers.append(entry.last_offset)

    def append_to_file(self, entry: AbortedTransaction) -> None:
        """Append an entry for readers in other processes. A crash may lose it; recovery rebuilds it from the log."""
        self._unsynced = self._differs = True
        with self._path.open("ab") as file:
            file.write(_encode(entry))
        self._differs = False

    def sync(self, disk: Disk) -> None:
        """Sync what was appended, before a checkpoint relies on it."""
        if self._differs:
            self.write_file()
        if not self._unsynced:
            return
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            disk.sync(fd)
        finally:
            os.close(fd)
        self._unsynced = False

    def write_file(self) -> None:
        """Rewrite the file with exactly what is in memory."""
        encoded = self._encoded()
        try:
            if self._path.read_bytes() == encoded:
                return
        except FileNotFoundError:
            if not encoded:
                return
        if encoded:
            replacement = self._path.with_name(FILE_NAME + TEMPORARY_SUFFIX)
            replacement.write_bytes(encoded)
            replacement.rename(self._path)
            self._unsynced = True
        else:
            self._path.unlink()
            self._unsynced = False
        self._differs = False

    def between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions with records in `[first_offset, end_offset)`."""
        start = bisect_left(self._markers, first_offset)
        return [entry for entry in self._entries[start:] if entry.first_offset < end_offset]

    def drop_before(self, offset: int) -> bool:
        """Remove those that end before `offset`. True if there were any."""
        keep = bisect_left(self._markers, offset)
        del self._entries[:keep], self._markers[:keep]
        return keep > 0

    def drop_from(self, offset: int) -> None:
        """Remove those that end at `offset` or after it: their markers are not in the log."""
        keep = bisect_left(self._markers, offset)
        del self._entries[keep:], self._markers[keep:]

    def drop(self, gone: Iterable[AbortedTransaction]) -> None:
        """Remove those of which no record is left in the log."""
        removed = frozenset(gone)
        self._entries = [entry for entry in self._entries if entry not in removed]
        self._markers = [entry.last_offset for entry in self._entries]

    def clear(self) -> None:
        self._entries.clear()
        self._markers.clear()

    def _encoded(self) -> bytes:
        return b"".join(map(_encode, self._entries))


def _encode(entry: AbortedTransaction) -> bytes:
    content = _ENTRY.pack(*entry)
    return content + _CRC.pack(crc32c(content))
