"""Opening a partition after whatever happened to it.

Everything before the checkpoint's recovery point is on the disk and was verified. What follows is read batch by batch: a
tail that ends within a batch, or whose checksum is wrong, was never acknowledged and is cut off. Damage that good batches
follow is something else: a bad disk. It is reported and left where it is, and so is everything behind it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import CorruptSegmentError, StorageError
from penstock.log.aborted import AbortedTransaction
from penstock.log.batch import NO_TIMESTAMP
from penstock.log.checkpoint import PartitionCheckpoint, load_checkpoint
from penstock.log.control import marker_commits, marker_coordinator_epoch
from penstock.log.index import SparseIndex, load_index
from penstock.log.scan import Bad, Found, scan
from penstock.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, Segment
from penstock.log.swap import finish_swap

if TYPE_CHECKING:
    from penstock.log.partition import PartitionLog

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveryReport:
    """What opening a partition had to do."""

    scanned_bytes: int = 0
    seconds: float = 0.0
    truncated_bytes: int = 0
    damaged: list[CorruptSegmentError] = field(default_factory=list)

    def add(self, other: RecoveryReport) -> None:
        self.scanned_bytes += other.scanned_bytes
        self.seconds += other.seconds
        self.truncated_bytes += other.truncated_bytes
        self.damaged.extend(other.damaged)

    @property
    def seconds_per_gb(self) -> float:
        return self.seconds / self.scanned_bytes * 1e9 if self.scanned_bytes else 0.0


def recover(log: PartitionLog) -> RecoveryReport:
    """Set the partition's state from its folder."""
    started = time.perf_counter()
    report = RecoveryReport()
    log.segments.clear()
    if not log.folder.is_dir():
        return report
    read_only = log.resources.read_only
    if not read_only:
        finish_swap(log.folder, log.resources)
        _remove_leftovers(log)
    checkpoint = load_checkpoint(log.folder)
    log.segments.extend(_list_segments(log))
    start = _trusted_start(log, checkpoint)
    log.log_start_offset = max(
        checkpoint.log_start_offset if checkpoint else 0, log.segments[0].base_offset if log.segments else 0
    )
    log.clean_offset = checkpoint.clean_offset if checkpoint else 0
    log.end_offset = start.recovery_offset
    log.synced_offset = start.recovery_offset
    log.checkpointed_offset = start.recovery_offset if checkpoint else -1
    _read_from(log, start, report)
    report.seconds = time.perf_counter() - started
    if not read_only and (report.scanned_bytes or report.truncated_bytes):
        log.note_recovered()
    return report


def _list_segments(log: PartitionLog) -> list[Segment]:
    bases = sorted(int(path.stem) for path in log.folder.glob("*" + LOG_SUFFIX) if path.stem.isdigit())
    interval = log.config.index_interval_bytes
    return [Segment(log.folder, base, log.resources, interval) for base in bases]


def _remove_leftovers(log: PartitionLog) -> None:
    for path in log.folder.iterdir():
        if path.suffix in (CLEANED_SUFFIX, ".new"):
            path.unlink()


def _trusted_start(log: PartitionLog, checkpoint: PartitionCheckpoint | None) -> PartitionCheckpoint:
    """Where reading starts: the checkpoint, if the files bear it out, or the very beginning."""
    first = log.segments[0].base_offset if log.segments else 0
    if checkpoint is not None:
        if not log.segments:
            return checkpoint
        for segment in log.segments:
            if segment.base_offset == checkpoint.recovery_segment:
                if segment.path.stat().st_size >= checkpoint.recovery_position and _restore(log, checkpoint):
                    return checkpoint
                break
        logger.warning(
            "%s: the files do not match the checkpoint; the whole partition is verified",
            log.name,
            extra={"partition": log.name},
        )
    log.producers.clear()
    log.aborted.clear()
    return PartitionCheckpoint(recovery_offset=first, recovery_segment=first)


def _restore(log: PartitionLog, checkpoint: PartitionCheckpoint) -> bool:
    if not log.aborted.load(checkpoint.recovery_offset):
        logger.warning("%s: the index of aborted transactions is damaged", log.name, extra={"partition": log.name})
        return False
    try:
        log.producers.restore(checkpoint.producers)
    except ValueError as error:
        logger.warning("%s", error, extra={"partition": log.name})
        return False
    return True


def _read_from(log: PartitionLog, start: PartitionCheckpoint, report: RecoveryReport) -> None:
    for number, segment in enumerate(log.segments):
        last = number == len(log.segments) - 1
        if segment.base_offset < start.recovery_segment:
            segment.load_sealed()
            continue
        at_start = segment.base_offset == start.recovery_segment
        position = start.recovery_position if at_start else 0
        if last:
            _read_active(log, segment, start if at_start else None, report)
        else:
            segment.load_sealed()
            if at_start and position == 0 and start.recovery_offset < segment.base_offset:
                log.end_offset = segment.base_offset
            _replay(log, segment, position, segment.size, None, report, dense=not segment.compacted)
            log.end_offset = max(log.end_offset, segment.next_offset)


def _read_active(
    log: PartitionLog, segment: Segment, start: PartitionCheckpoint | None, report: RecoveryReport
) -> None:
    size = segment.path.stat().st_size
    position = start.recovery_position if start else 0
    index = _index_before(segment, position)
    segment.adopt_index(index)
    segment.first_timestamp = start.first_timestamp if start else NO_TIMESTAMP
    segment.max_timestamp = start.max_timestamp if start else NO_TIMESTAMP
    segment.size = size
    log.end_offset = max(log.end_offset, segment.base_offset)
    end = _replay(log, segment, position, size, index, report, dense=True)
    segment.next_offset = log.end_offset
    if end < size:
        _cut(log, segment, end, size, report)


def _index_before(segment: Segment, position: int) -> SparseIndex:
    try:
        index, _ = load_index(segment.index_path.read_bytes(), segment.index_interval_bytes)
    except FileNotFoundError:
        index = SparseIndex(segment.index_interval_bytes)
    index.cut(position)
    if not segment.resources.read_only:
        segment.index_path.unlink(missing_ok=True)
        index.mark_unsaved()
    return index


def _replay(
    log: PartitionLog,
    segment: Segment,
    position: int,
    size: int,
    index: SparseIndex | None,
    report: RecoveryReport,
    *,
    dense: bool,
) -> int:
    """Take in the batches from `position` on. Gives the end of the last good one."""
    reached = position
    start = position
    for step in scan(segment.read_at, position, size, log.end_offset, dense=dense):
        if isinstance(step, Found):
            if index is not None:
                index.note(step.header.base_offset, step.position, segment.max_timestamp)
                if segment.first_timestamp == NO_TIMESTAMP:
                    segment.first_timestamp = step.header.max_timestamp
                segment.max_timestamp = max(segment.max_timestamp, step.header.max_timestamp)
            replay_batch(log, step)
            reached = step.position + len(step.batch)
        else:
            segment.mark_verified(start, reached)
            start = step.end
            if step.end < size or index is None:
                _report_damage(log, segment, step, report)
                reached = step.end
    segment.mark_verified(start, reached)
    report.scanned_bytes += size - position
    return reached


def replay_batch(log: PartitionLog, found: Found) -> None:
    """Let the state follow a batch that is in the log."""
    header = found.header
    log.end_offset = header.next_offset
    if header.producer_id < 0:
        return
    if not header.is_control:
        log.producers.record(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset_delta,
            header.base_offset,
            header.max_timestamp,
            header.is_transactional,
        )
        return
    commits = marker_commits(found.batch)
    if commits is None:
        return
    ended = log.producers.end_transaction(
        header.producer_id,
        header.producer_epoch,
        header.base_offset,
        commit=commits,
        coordinator_epoch=marker_coordinator_epoch(found.batch),
        timestamp_ms=header.max_timestamp,
    )
    if ended is not None and ended.aborted:
        log.aborted.add(AbortedTransaction(header.producer_id, ended.first_offset, header.base_offset))


def _report_damage(log: PartitionLog, segment: Segment, bad: Bad, report: RecoveryReport) -> None:
    error = CorruptSegmentError(str(segment.path), bad.position, log.end_offset, bad.reason)
    logger.error("%s", error, extra={"partition": log.name, "segment": str(segment.path), "position": bad.position})
    report.damaged.append(error)


def _cut(log: PartitionLog, segment: Segment, end: int, size: int, report: RecoveryReport) -> None:
    segment.size = end
    report.truncated_bytes += size - end
    if log.resources.read_only:
        return
    logger.warning(
        "%s: cut %d bytes of an unfinished write at offset %d",
        segment.path,
        size - end,
        log.end_offset,
        extra={"partition": log.name, "bytes": size - end},
    )
    try:
        log.resources.disk.truncate(segment.file().fd, end)
    except OSError as error:
        raise StorageError(f"{segment.path} could not be truncated: {error.strerror}") from error
