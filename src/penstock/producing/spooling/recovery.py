"""Opening the spool of an earlier process: every batch is checked, torn ends are cut off, damage is logged.

An incomplete batch at the end is an interrupted write: `put` had not returned, so its records were never promised.
Damage followed by valid batches means that stored records are lost. It is logged, and the records around it are
delivered.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import CorruptBatchError, CorruptSegmentError, StorageError
from penstock.log.batches.scan import BadBytes, WholeBatch, scan
from penstock.log.disk import Disk
from penstock.log.segment import LOG_SUFFIX
from penstock.model import NewRecord
from penstock.producing.buffers import size_of
from penstock.producing.spooling.batches import records_in
from penstock.producing.spooling.folder import Holes

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"\d{20}" + re.escape(LOG_SUFFIX), re.ASCII)


@dataclass(slots=True)
class SealedSegment:
    """A segment that is no longer written to."""

    path: Path
    base: int
    size: int
    end: int
    """The number after its last record."""


@dataclass(slots=True)
class Recovered:
    """The contents of a spool's folder."""

    segments: list[SealedSegment] = field(default_factory=list)
    records: int = 0
    """Records to deliver."""
    size_bytes: int = 0
    damaged: list[CorruptSegmentError] = field(default_factory=list)


def recover(folder: Path, committed: int, dropped: Holes, disk: Disk) -> Recovered:
    """Check all segments, cut torn ends and delete empty segments."""
    found = Recovered()
    paths = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in paths:
        segment = SealedSegment(path, int(path.stem), path.stat().st_size, int(path.stem))
        good_end = 0
        for step in batches_of(segment, 0, segment.base, disk):
            if isinstance(step, BadBytes):
                torn = path is paths[-1] and step.end == segment.size
                if _is_empty(segment, step, disk):
                    continue
                if torn:
                    logger.warning("%s: cut off an unfinished write after record %d", path, segment.end - 1)
                else:
                    _report(found, segment, step)
                continue
            good_end = step.end
            segment.end = step.header.next_offset
            if segment.end - 1 > committed:
                _count(found, segment, step, committed, dropped)
        if good_end < segment.size:
            _cut(segment, good_end, disk)
        if segment.size:
            found.segments.append(segment)
        else:
            path.unlink()
    return found


def batches_of(segment: SealedSegment, position: int, sequence: int, disk: Disk) -> Iterator[WholeBatch | BadBytes]:
    """The batches of a segment from a position on; `sequence` is the number expected there."""
    try:
        fd = disk.open(segment.path)
    except OSError as error:
        raise StorageError(f"{segment.path} cannot be opened: {error.strerror}") from error

    def read_at(where: int, length: int) -> bytes:
        return disk.read(fd, length, where)

    try:
        yield from scan(read_at, position, segment.size, sequence)
    except OSError as error:
        raise StorageError(f"{segment.path} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


def records_of(found: WholeBatch) -> list[NewRecord]:
    """The records of a valid batch; none if it is not a spool's batch, which `recover` has logged."""
    try:
        return records_in(found.batch)
    except CorruptBatchError:
        return []


def is_dropped(sequence: int, dropped: Holes) -> bool:
    return any(first <= sequence < end for first, end in dropped)


def _count(found: Recovered, segment: SealedSegment, step: WholeBatch, committed: int, dropped: Holes) -> None:
    try:
        records = records_in(step.batch)
    except CorruptBatchError as error:
        _report(found, segment, BadBytes(step.position, step.end, str(error)))
        return
    for sequence, record in enumerate(records, step.header.base_offset):
        if sequence > committed and not is_dropped(sequence, dropped):
            found.records += 1
            found.size_bytes += size_of(record)


def _is_empty(segment: SealedSegment, step: BadBytes, disk: Disk) -> bool:
    """Whether this is the unused end of a segment, where nothing was ever written."""
    fd = disk.open(segment.path)
    try:
        return step.end == segment.size and not any(disk.read(fd, step.end - step.position, step.position))
    finally:
        os.close(fd)


def _report(found: Recovered, segment: SealedSegment, step: BadBytes) -> None:
    error = CorruptSegmentError(str(segment.path), step.position, segment.end, step.reason)
    logger.error("%s", error, extra={"segment": str(segment.path), "position": step.position})
    found.damaged.append(error)


def _cut(segment: SealedSegment, end: int, disk: Disk) -> None:
    fd = disk.open(segment.path, create=True)
    try:
        disk.truncate(fd, end)
    except OSError as error:
        raise StorageError(f"{segment.path} could not be truncated after its last record: {error.strerror}") from error
    finally:
        os.close(fd)
    segment.size = end
