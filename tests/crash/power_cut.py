"""A disk that a power cut hits: of each file and folder, what was synced last is left, and nothing else.

This is harsher than real file systems, which keep more, but may not be asked to: what was written but not synced is
gone, a file whose folder was not synced has no name, and a renamed one has its old name.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.log.disk import Disk


class ForgetfulDisk(Disk):
    """An ordinary disk that remembers what a power cut would leave. It holds every file that was ever synced open, so
    that the system does not give its number to another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._held.values():
            os.close(fd)

    def sync(self, fd: int) -> None:
        found = os.fstat(fd)
        content = os.pread(fd, found.st_size, 0)
        with self._lock:
            self._hold(fd, found.st_ino)
            self._contents[found.st_ino] = content

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Inodes of files that nobody has synced are held too, or a later file might be taken for them.
            names = {}
            with self._lock:
                self._hold(fd, os.fstat(fd).st_ino)
                for entry in os.scandir(folder):
                    names[entry.name] = entry.inode()
                    self._hold_path(entry.path, entry.inode())
                self._names[os.fstat(fd).st_ino] = names
        finally:
            os.close(fd)

    def _hold(self, fd: int, number: int) -> None:
        if number not in self._held:
            self._held[number] = os.dup(fd)

    def _hold_path(self, path: str, number: int) -> None:
        if number not in self._held:
            try:
                self._held[number] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return

    def leave(self, folder: Path, target: Path) -> None:
        """Make in `target` what a power cut at this moment would leave of the folder."""
        with self._lock:
            self._leave(folder.stat().st_ino, target)

    def _leave(self, number: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._names.get(number, {}).items():
            held = self._held.get(child)
            if held is not None and stat.S_ISDIR(os.fstat(held).st_mode):
                self._leave(child, target / name)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))
