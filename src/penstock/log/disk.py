"""All file system calls in one place, so that tests can make the disk full, slow or broken."""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.errors import StorageError

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS only this call flushes the disk's cache; there is no fdatasync."""
_MOST_BUFFERS_PER_WRITE: Final = 1000
"""Below the kernel's IOV_MAX of 1024."""


class Disk:
    """Every call that can fail because of the disk. Errors are OSErrors."""

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def write_all(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """Write all buffers, one after the other, starting at `position`."""
        for first in range(0, len(buffers), _MOST_BUFFERS_PER_WRITE):
            group = buffers[first : first + _MOST_BUFFERS_PER_WRITE]
            expected = sum(map(len, group))
            written = self.write_some(fd, group, position)
            if written != expected:
                self._write_rest(fd, memoryview(b"".join(group))[written:], position + written)
            position += expected

    def _write_rest(self, fd: int, rest: memoryview, position: int) -> None:
        while rest:
            written = self.write_some(fd, [rest], position)
            position += written
            rest = rest[written:]

    def write_some(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        """One system call. It may write less than everything; returns how much."""
        return os.pwrite(fd, buffers[0], position) if len(buffers) == 1 else os.pwritev(fd, buffers, position)

    def read(self, fd: int, length: int, position: int) -> bytes:
        return os.pread(fd, length, position)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        if _FULL_SYNC is None:
            os.fdatasync(fd)
        else:
            fcntl.fcntl(fd, _FULL_SYNC)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class OpenFile:
    """A file that stays open as long as this object is referenced."""

    __slots__ = ("fd", "writable")

    def __init__(self, fd: int, *, writable: bool) -> None:
        self.fd = fd
        self.writable = writable

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        os.close(self.fd)


class FilePool:
    """At most `limit` open files; the least recently used is closed first.

    Users of a file hold its OpenFile; a file that the pool dropped is closed when its last user is done.
    """

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        self.disk = disk
        self.limit = limit
        self._open: OrderedDict[Path, OpenFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: Path, *, write: bool = False) -> OpenFile:
        found = self._open.get(path)
        if found is not None and (found.writable or not write):
            self._open.move_to_end(path)
            return found
        try:
            opened = OpenFile(self.disk.open(path, create=write), writable=write)
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror}") from error
        self._open[path] = opened
        self._open.move_to_end(path)
        while len(self._open) > self.limit:
            self._open.popitem(last=False)
        return opened

    def drop(self, path: Path) -> None:
        """Forget a file that was removed or replaced."""
        self._open.pop(path, None)

    def close(self) -> None:
        self._open.clear()
