"""A disk that fails on purpose.

    disk = FaultyDisk()
    store = TopicStore(folder, resources=Resources(disk))
    disk.fill(free_bytes=100)            # the next write stops after 100 bytes, and says that the disk is full
    disk.free()                          # space has returned
    disk.fail("sync", times=1)           # the next fdatasync says EIO, the one after it is fine again
    disk.fail("read", code=errno.EIO, times=None)    # until `heal`

Every call without a scripted fault reaches the real files, so a test can look at them, or open them again.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from penstock.log.disk import Disk
from penstock.testing.faulty import Countdown

Operation = Literal["open", "write", "read", "truncate", "sync", "sync_folder"]


class FaultyDisk(Disk):
    """See the module's docstring. Without a script it is an ordinary disk that counts calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """How often each operation was called, including failures."""
        self.largest_write_bytes: int | None = None
        """The most that one call writes, as when it is interrupted: the caller must write the rest."""
        self._free_bytes: int | None = None
        self._faults: dict[str, tuple[int, Countdown]] = {}

    def fail(self, operation: Operation, *, code: int = errno.EIO, passes: int = 0, times: int | None = 1) -> None:
        """Let `passes` calls through, then fail `times` of them with the error number; None: all, until `heal`."""
        self._faults[operation] = code, Countdown(passes, times)

    def fill(self, free_bytes: int = 0) -> None:
        """Only this many more bytes fit. A larger write writes what fits, and then raises ENOSPC."""
        self._free_bytes = free_bytes

    def free(self) -> None:
        self._free_bytes = None

    def heal(self) -> None:
        """End all faults; a full disk stays full until `free`."""
        self._faults.clear()

    def open(self, path: Path, *, create: bool = False) -> int:
        self._maybe_fail("open")
        return super().open(path, create=create)

    def write_some(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        self._maybe_fail("write")
        wanted = memoryview(b"".join(buffers))
        limit = len(wanted) if self.largest_write_bytes is None else min(len(wanted), self.largest_write_bytes)
        if self._free_bytes is not None:
            if limit and not self._free_bytes:
                raise _error(errno.ENOSPC)
            limit = min(limit, self._free_bytes)
            self._free_bytes -= limit
        return super().write_some(fd, [wanted[:limit]], position)

    def read(self, fd: int, length: int, position: int) -> bytes:
        self._maybe_fail("read")
        return super().read(fd, length, position)

    def truncate(self, fd: int, length: int) -> None:
        self._maybe_fail("truncate")
        if self._free_bytes is not None:
            self._free_bytes += max(0, os.fstat(fd).st_size - length)
        super().truncate(fd, length)

    def sync(self, fd: int) -> None:
        self._maybe_fail("sync")
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._maybe_fail("sync_folder")
        super().sync_folder(folder)

    def _maybe_fail(self, operation: Operation) -> None:
        self.calls[operation] += 1
        code, countdown = self._faults.get(operation, (0, Countdown(0, 0)))
        if countdown.is_due():
            raise _error(code)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
