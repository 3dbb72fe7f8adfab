"""A segment written by compaction: under a temporary name, and durable before anything refers to it.

Its index has an entry for every batch, because compacted offsets have gaps and nothing else could confirm them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from penstock.log.batches.batch import NO_TIMESTAMP
from penstock.log.compacting.swap import cleaned_path
from penstock.log.disk import Disk
from penstock.log.index import Seal, SparseIndex, seal_block
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX

_FLUSH_BYTES: Final = 1 << 20
_FLUSH_ENTRIES: Final = 1 << 16


class Mark(NamedTuple):
    size: int
    index_size: int
    max_timestamp: int
    first_timestamp: int


class CleanedSegment:
    """The owner must call `finish` or `discard`."""

    def __init__(self, folder: Path, base_offset: int, disk: Disk) -> None:
        self.base_offset = base_offset
        self.size = 0
        self._disk = disk
        self._paths = [cleaned_path(folder, base_offset, suffix) for suffix in (LOG_SUFFIX, INDEX_SUFFIX)]
        self._fds: list[int] = []
        self._buffers: list[bytes | bytearray | memoryview] = []
        self._buffered_bytes = 0
        self._index = SparseIndex(0)
        self._index_size = 0
        self._max_timestamp = NO_TIMESTAMP
        self._first_timestamp = NO_TIMESTAMP
        try:
            for path in self._paths:
                self._fds.append(disk.open(path, create=True))
                disk.truncate(self._fds[-1], 0)
        except OSError:
            self.discard()
            raise

    def append(self, batch: bytes | bytearray | memoryview, base_offset: int, max_timestamp: int) -> None:
        self._index.note(base_offset, self.size, self._max_timestamp)
        self._buffers.append(batch)
        self._buffered_bytes += len(batch)
        self.size += len(batch)
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        if self._first_timestamp == NO_TIMESTAMP:
            self._first_timestamp = max_timestamp
        if self._buffered_bytes >= _FLUSH_BYTES or len(self._index) >= _FLUSH_ENTRIES:
            self._flush()

    def mark(self) -> Mark:
        self._flush()
        return Mark(self.size, self._index_size, self._max_timestamp, self._first_timestamp)

    def go_back(self, mark: Mark) -> None:
        """Discard what was appended since the mark."""
        self._flush()
        self.size, self._index_size, self._max_timestamp, self._first_timestamp = mark
        for fd, size in zip(self._fds, (self.size, self._index_size), strict=True):
            self._disk.truncate(fd, size)

    def finish(self, next_offset: int) -> None:
        """Seal the segment: nothing follows up to `next_offset`. Both files are on the disk when this returns."""
        self._flush()
        seal = Seal(self.size, next_offset, self._max_timestamp, self._first_timestamp, 1)
        self._write_index(seal_block(seal))
        for fd in self._fds:
            self._disk.sync(fd)
        self._close()

    def discard(self) -> None:
        self._close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _flush(self) -> None:
        self._disk.write_all(self._fds[0], self._buffers, self.size - self._buffered_bytes)
        self._buffers, self._buffered_bytes = [], 0
        self._write_index(self._index.take_unsaved())
        self._index = SparseIndex(0)

    def _write_index(self, block: bytes) -> None:
        if block:
            self._disk.write_all(self._fds[1], [block], self._index_size)
            self._index_size += len(block)

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
