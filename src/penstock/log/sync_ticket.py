"""A sync that can run elsewhere than on the thread that owns the partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.log.disk import Disk
from penstock.log.segment import Segment


class SyncTicket:
    """What has to reach the disk for everything before `offset` to survive a power cut. `run` may block in a thread."""

    __slots__ = ("_disk", "_files", "_folder", "newest", "offset")

    def __init__(self, disk: Disk, segments: Sequence[Segment], folder: Path | None, offset: int) -> None:
        self._disk = disk
        self._files = [segment.file() for segment in segments]
        self._folder = folder
        self.newest = segments[-1]
        self.offset = offset

    def run(self) -> None:
        for file in self._files:
            self._disk.sync(file.fd)
        if self._folder is not None:
            self._disk.sync_folder(self._folder)
            self._disk.sync_folder(self._folder.parent)
