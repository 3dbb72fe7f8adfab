"""The segment being written: a file of full size from the start, mapped into memory.

Writing through the map costs no system call: a copy puts the record into the hands of the operating system, where it
survives the death of this process. The file is first filled with zeros, so that a full disk is an error at that point,
and not a signal that kills the process during a copy.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.log.disk import Disk
from penstock.log.segment import LOG_SUFFIX, segment_name

_ZEROS: Final = bytes(1 << 20)


def segment_path(folder: Path, base: int) -> Path:
    return folder / (segment_name(base) + LOG_SUFFIX)


class WrittenSegment:
    """The last segment of a spool. One thread at a time writes; `sync` may run concurrently."""

    def __init__(self, folder: Path, base: int, size_bytes: int, disk: Disk) -> None:
        self.path = segment_path(folder, base)
        self.base = base
        self.used = 0
        self._disk = disk
        self._size = size_bytes
        self._syncing = threading.Lock()
        try:
            self._fd = disk.open(self.path, create=True)
        except OSError as error:
            raise _refused(self.path, error) from error
        try:
            for position in range(0, size_bytes, len(_ZEROS)):
                disk.write_all(self._fd, [_ZEROS[: size_bytes - position]], position)
            self._map = mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            os.close(self._fd)
            self.path.unlink()
            raise _refused(self.path, error) from error

    def has_room(self, size: int) -> bool:
        return self.used + size <= self._size

    def write(self, batch: bytes) -> None:
        end = self.used + len(batch)
        self._map[self.used : end] = batch
        self.used = end

    def sync(self) -> None:
        """Make what was written before survive a power cut. Raises OSError."""
        with self._syncing:
            if self._fd >= 0:  # else it was sealed, and synced, in the meantime
                self._sync()

    def _sync(self) -> None:
        if sys.platform != "linux":  # elsewhere fsync may not cover the mapped pages
            self._map.flush()
        self._disk.sync(self._fd)

    def seal(self, *, durable: bool) -> None:
        """Truncate the file after its last batch: nothing follows."""
        with self._syncing:
            try:
                if durable:
                    self._sync()
                self._map.close()
                self._disk.truncate(self._fd, self.used)
            finally:
                self._close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._map.close()
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def _refused(path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"the disk is full: {path} could not be created. The record was not accepted, and what "
            "the spool holds is safe; make room and send again"
        )
    return StorageError(f"{path} could not be created: {error.strerror}. What the spool holds is safe")
