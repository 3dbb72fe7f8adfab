"""A power cut, below everything that is ours: of each file and folder, what was synced last is left, and nothing else.

The system calls that sync are taken over, `os.fdatasync` and `os.fsync`, so the code under test runs with the `Disk`
that it has everywhere: one whose `sync` does nothing leaves nothing. This is harsher than real file systems, which keep
more, but may not be asked to: what was written but not synced is gone, a file whose folder was not synced has no name,
and a renamed one has its old name.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest


class PowerCut:
    """Remembers, while it is entered, what a power cut would leave of a folder. See `leave`.

    It holds every file that was ever synced open, so that the system does not give its number to another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for name in ("fdatasync", "fsync"):
            self._patch.setattr(os, name, self._instead_of(getattr(os, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()
        for fd in self._held.values():
            os.close(fd)

    def _instead_of(self, real: Callable[[int], None]) -> Callable[[int], None]:
        """A sync that remembers what is in our folder, without waiting for the disk, and leaves all else alone."""

        def sync(file: int | object) -> None:
            fd = file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path != self._folder and self._folder not in path.parents:
                real(fd)
            elif stat.S_ISDIR(os.fstat(fd).st_mode):
                self._remember_names(fd, path)
            else:
                self._remember_content(fd)

        return sync

    def _remember_content(self, fd: int) -> None:
        found = os.fstat(fd)
        content = _read_all(fd, found.st_size)
        with self._lock:
            self._hold(fd, found.st_ino)
            self._contents[found.st_ino] = content

    def _remember_names(self, fd: int, folder: Path) -> None:
        # Inodes of files that nobody has synced are held too, or a later file might be taken for them.
        names = {}
        with self._lock:
            self._hold(fd, os.fstat(fd).st_ino)
            for entry in os.scandir(folder):
                names[entry.name] = entry.inode()
                self._hold_path(entry.path, entry.inode())
            self._names[os.fstat(fd).st_ino] = names

    def _hold(self, fd: int, number: int) -> None:
        if number not in self._held:
            self._held[number] = os.dup(fd)

    def _hold_path(self, path: str, number: int) -> None:
        if number not in self._held:
            try:
                self._held[number] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return

    def leave(self, target: Path) -> None:
        """Make in `target` what a power cut at this moment would leave of the folder."""
        with self._lock:
            self._leave(self._folder.stat().st_ino, target)

    def _leave(self, number: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._names.get(number, {}).items():
            held = self._held.get(child)
            if held is not None and stat.S_ISDIR(os.fstat(held).st_mode):
                self._leave(child, target / name)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))


def _read_all(fd: int, size_bytes: int) -> bytes:
    """The content of a file that may be open for writing only."""
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        return file.read(size_bytes)
