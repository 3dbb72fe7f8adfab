"""A partition read from its files while another process may write to them.

Nothing is locked or written. An incomplete batch at the end of the last segment is ignored. The owner may start a
segment, delete old ones, or replace some by a compacted one at any time; `refresh` looks again and keeps what is still
valid.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Final

from penstock.errors import StorageError, UnknownTopicError
from penstock.log.checkpoint import FILE_NAME as CHECKPOINT
from penstock.log.checkpoint import load_checkpoint
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.partition import PartitionLog
from penstock.log.recovery import take_in_more
from penstock.log.segment import LOG_SUFFIX, Resources, Segment

_ATTEMPTS: Final = 8
"""How often to list the folder before a missing file counts as lost."""
_PAUSE_S: Final = 0.01
"""The pause between two attempts: longer than it takes to install a compacted segment."""
_CONFIG: Final = TopicConfig()
_OPEN_FILES: Final = 8
_INDEXES: Final = 4


class LiveView:
    def __init__(self, folder: Path) -> None:
        topic, _, number = folder.name.rpartition("-")
        if not topic or not number.isdigit():
            raise UnknownTopicError(f"{folder} is not a partition folder, whose name is TOPIC-NUMBER")
        self.folder = folder
        self.partition = int(number)
        self._topic = topic
        self._inodes: dict[int, int] = {}
        self._checkpoint: tuple[int, int] | None = None
        self._existed = False
        self.log = self._open()

    def refresh(self) -> None:
        try:
            inodes = _segments_in(self.folder)
        except FileNotFoundError:
            if self._existed:
                raise UnknownTopicError(f"{self.folder} is gone: the topic was deleted") from None
            return
        try:
            if not self._catch_up(inodes):
                self.reopen()
        except (FileNotFoundError, StorageError):
            # A file was removed or replaced after the listing.
            self.reopen()

    def reopen(self) -> None:
        self.close()
        self.log = self._open()

    def look_again(self, segment: Segment) -> None:
        """Load a segment again: it may have been replaced at the moment it was read."""
        self._inodes.pop(segment.base_offset, None)
        self.log.resources.forget(segment)
        time.sleep(_PAUSE_S)
        self.refresh()

    def close(self) -> None:
        self.log.resources.files.close()

    def _open(self) -> PartitionLog:
        resources = Resources(open_files=_OPEN_FILES, indexes=_INDEXES, read_only=True)
        for attempt in range(_ATTEMPTS):
            try:
                self._inodes = _segments_in(self.folder) if self.folder.is_dir() else {}
                self._existed = self.folder.is_dir()
                self._checkpoint = None
                return PartitionLog.open(self._topic, self.partition, self.folder, _CONFIG, resources)[0]
            except (FileNotFoundError, StorageError):
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _catch_up(self, inodes: dict[int, int]) -> bool:
        """Take over what was appended since the last look. False if the partition must be opened again instead."""
        log = self.log
        if not log.segments:
            return not inodes
        active = log.segments[-1]
        if inodes.get(active.base_offset) != self._inodes.get(active.base_offset):
            return False
        if active.path.stat().st_size < active.size:
            return False
        bases = sorted(inodes)
        if inodes != self._inodes:
            self._replace_segments(bases, inodes)
        take_in_more(log, [base for base in bases if base > active.base_offset])
        log.high_watermark = log.end_offset
        self._inodes = inodes
        self._follow_start()
        return True

    def _replace_segments(self, bases: list[int], inodes: dict[int, int]) -> None:
        """Keep the segments whose files are unchanged, and load the others."""
        log = self.log
        active = log.segments[-1]
        before = {segment.base_offset: segment for segment in log.segments}
        segments: list[Segment] = []
        for base, following in itertools.pairwise(bases):
            if base >= active.base_offset:
                break
            segment = before.pop(base, None)
            if segment is None or inodes[base] != self._inodes.get(base):
                if segment is not None:
                    log.resources.forget(segment)
                segment = Segment(self.folder, base, log.resources, _CONFIG.index_interval_bytes)
                segment.load_sealed(following, clean=base < log.clean_offset)
            segments.append(segment)
        for base, segment in before.items():
            if base < active.base_offset:
                log.resources.forget(segment)
        log.segments[:] = [*segments, active]

    def _follow_start(self) -> None:
        log = self.log
        try:
            found = os.stat(self.folder / CHECKPOINT)
        except FileNotFoundError:
            return
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._checkpoint:
            checkpoint = load_checkpoint(self.folder)
            if checkpoint is not None:
                log.log_start_offset = max(log.log_start_offset, checkpoint.log_start_offset)
                log.clean_offset = checkpoint.clean_offset
            self._checkpoint = seen
        if log.log_start_offset < log.segments[0].base_offset:
            log.log_start_offset = log.segments[0].base_offset


def _segments_in(folder: Path) -> dict[int, int]:
    with os.scandir(folder) as entries:
        return {
            int(entry.name[: -len(LOG_SUFFIX)]): entry.inode()
            for entry in entries
            if entry.name.endswith(LOG_SUFFIX) and entry.name[: -len(LOG_SUFFIX)].isdigit()
        }
