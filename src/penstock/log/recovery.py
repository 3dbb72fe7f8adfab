"""Opening a partition after a clean close, a crash or damage.

Everything before the checkpoint's recovery point is on the disk and was verified. What follows is read batch by batch.
A tail that ends within a batch, or has a wrong checksum, was never acknowledged and is cut off. Damage followed by
valid batches comes from a bad disk: it is reported and left in place, with everything after it. The same holds for a
file that is missing or has lost its end: the missing offsets are refused, and never assigned again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptSegmentError, StorageError
from penstock.log.aborted import FILE_NAME as ABORTED_FILE
from penstock.log.aborted import AbortedTransaction
from penstock.log.batches.batch import NO_TIMESTAMP, marker_commits, marker_coordinator_epoch
from penstock.log.batches.scan import BadBytes, WholeBatch, describe_tail, scan
from penstock.log.checkpoint import PartitionCheckpoint, load_checkpoint
from penstock.log.compacting.swap import finish_swap
from penstock.log.index import SparseIndex, load_index
from penstock.log.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Resources, Segment
from penstock.log.statefile import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from penstock.log.partition import PartitionLog

logger = logging.getLogger(__name__)

_FORMER_INDEX_SUFFIX: Final = ".index"
_FORMER_ABORTED: Final = "aborted"


@dataclass(slots=True)
class RecoveryReport:
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


def finish_interrupted(folder: Path, resources: Resources) -> None:
    """Finish operations that were decided before a crash, and remove the others."""
    if not folder.is_dir():
        return
    _rename_former(folder)
    finish_swap(folder, resources)
    for path in folder.iterdir():
        if path.name.endswith((CLEANED_SUFFIX, TEMPORARY_SUFFIX)):
            path.unlink()


def _rename_former(folder: Path) -> None:
    """Rename indexes of earlier versions, which had Kafka's names with another format."""
    for path in list(folder.iterdir()):
        stem, former, rest = path.name.partition(_FORMER_INDEX_SUFFIX)
        if former and rest in ("", CLEANED_SUFFIX) and (stem.isdigit() or stem == _FORMER_ABORTED):
            path.replace(folder / ((ABORTED_FILE if stem == _FORMER_ABORTED else stem + INDEX_SUFFIX) + rest))


def recover(log: PartitionLog) -> RecoveryReport:
    started = time.perf_counter()
    report = RecoveryReport()
    log.segments.clear()
    if not log.folder.is_dir():
        return report
    read_only = log.resources.read_only
    checkpoint = load_checkpoint(log.folder)
    log.segments.extend(_list_segments(log))
    log.log_start_offset = checkpoint.log_start_offset if checkpoint else 0
    log.clean_offset = checkpoint.clean_offset if checkpoint else 0
    if log.segments and log.log_start_offset < log.segments[0].base_offset:
        if checkpoint and not read_only:
            _report_missing(log, log.segments[0], log.log_start_offset, report)
        log.log_start_offset = log.segments[0].base_offset
    start = _trusted_start(log, checkpoint)
    log.end_offset = start.recovery_offset
    log.synced_offset = start.recovery_offset
    log.checkpointed_offset = start.recovery_offset if checkpoint else -1
    _read_from(log, start, report)
    if checkpoint is None:
        cleaned = (segment.base_offset + 1 for segment in log.segments if segment.compacted)
        log.clean_offset = max(cleaned, default=0)
    if checkpoint and log.end_offset < checkpoint.recovery_offset:
        _report_lost_end(log, checkpoint, report)
    if not read_only:
        log.write_aborted()
    report.seconds = time.perf_counter() - started
    log.note_recovered()
    return report


def rewind(log: PartitionLog, point: PartitionCheckpoint) -> None:
    """Forget what was staged and refused. `point` is an earlier state; what was written since is read."""
    log.producers.restore(point.producers)
    log.aborted.drop_from(point.recovery_offset)
    log.end_offset = point.recovery_offset
    active = log.segments[-1]
    active.max_timestamp = active.first_timestamp = NO_TIMESTAMP
    for segment in log.segments:
        if segment.base_offset < point.recovery_segment:
            continue
        at_point = segment.base_offset == point.recovery_segment
        if at_point and segment is active:
            active.max_timestamp, active.first_timestamp = point.max_timestamp, point.first_timestamp
        position = point.recovery_position if at_point else 0
        next_offset = point.recovery_offset if at_point else segment.base_offset
        for step in scan(segment.read_at, position, segment.size, next_offset):
            if isinstance(step, WholeBatch):
                replay_batch(log, step)
                if segment is active:
                    _note_times(segment, step)
        log.end_offset = max(log.end_offset, segment.base_offset)
    active.next_offset = log.end_offset
    log.write_aborted()


def take_in_more(log: PartitionLog, new_bases: list[int]) -> RecoveryReport:
    """Let a read-only partition follow its owner: read new batches, and the segments `new_bases`.

    The caller has listed the segments before, so a segment with a successor no longer grows.
    """
    report = RecoveryReport()
    new = [Segment(log.folder, base, log.resources, log.config.index_interval_bytes) for base in new_bases]
    active = log.segments[-1]
    start, active.size = active.size, active.path.stat().st_size
    active.size = _replay(log, active, start, active.index, report)
    active.next_offset = log.end_offset
    for segment, following in zip(new, new_bases[1:], strict=False):
        segment.load_sealed(following)
        _replay(log, segment, 0, None, report)
        log.end_offset = max(log.end_offset, segment.next_offset)
    log.segments.extend(new)
    if new:
        active.sealed = True
        _read_active(log, new[-1], None, report)
    return report


def _list_segments(log: PartitionLog) -> list[Segment]:
    bases = sorted(int(path.stem) for path in log.folder.glob("*" + LOG_SUFFIX) if path.stem.isdigit())
    interval = log.config.index_interval_bytes
    return [Segment(log.folder, base, log.resources, interval) for base in bases]


def _trusted_start(log: PartitionLog, checkpoint: PartitionCheckpoint | None) -> PartitionCheckpoint:
    """Where reading starts: at the checkpoint if the files match it, or at the beginning."""
    first = log.segments[0].base_offset if log.segments else log.log_start_offset
    if checkpoint is not None:
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
    intact = log.aborted.load(checkpoint.log_start_offset, checkpoint.recovery_offset)
    if not intact or log.aborted.checksum() != checkpoint.aborted_checksum:
        logger.warning("%s: the index of aborted transactions is damaged", log.name, extra={"partition": log.name})
        return False
    try:
        log.producers.restore(checkpoint.producers)
    except ValueError as error:
        logger.warning("%s", error, extra={"partition": log.name})
        return False
    return True


def _read_from(log: PartitionLog, start: PartitionCheckpoint, report: RecoveryReport) -> None:
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        segment.load_sealed(following.base_offset, clean=segment.base_offset < log.clean_offset)
        if segment.next_offset < following.base_offset and not log.resources.read_only:
            _report_missing(log, following, segment.next_offset, report)
        if segment.base_offset >= start.recovery_segment:
            position = start.recovery_position if segment.base_offset == start.recovery_segment else 0
            log.end_offset = max(log.end_offset, segment.base_offset)
            _replay(log, segment, position, None, report)
            log.end_offset = max(log.end_offset, segment.next_offset)
    if log.segments:
        at_start = log.segments[-1].base_offset == start.recovery_segment
        _read_active(log, log.segments[-1], start if at_start else None, report)


def _read_active(
    log: PartitionLog, segment: Segment, start: PartitionCheckpoint | None, report: RecoveryReport
) -> None:
    segment.size = size = segment.path.stat().st_size
    position = start.recovery_position if start else 0
    index = _index_before(segment, position)
    segment.adopt_index(index)
    _fill_index(segment, index, position)
    segment.first_timestamp = start.first_timestamp if start else NO_TIMESTAMP
    segment.max_timestamp = start.max_timestamp if start else NO_TIMESTAMP
    log.end_offset = max(log.end_offset, segment.base_offset)
    end = _replay(log, segment, position, index, report)
    segment.next_offset = log.end_offset
    if end < size:
        _cut(log, segment, end, size, report)


def _index_before(segment: Segment, position: int) -> SparseIndex:
    """The index of the active segment up to `position`. A file that disagrees is removed and written again."""
    try:
        data = segment.index_path.read_bytes()
    except FileNotFoundError:
        return SparseIndex(segment.index_interval_bytes)
    index, seal, intact = load_index(data, segment.index_interval_bytes)
    if index.cut(position) or not intact or seal is not None:
        index.mark_unsaved()
        if not segment.resources.read_only:
            segment.index_path.unlink()
    return index


def _fill_index(segment: Segment, index: SparseIndex, position: int) -> None:
    """Rebuild index entries before `position` that a crash has lost, so that readers need not scan far."""
    start = index.positions[-1] if len(index) else 0
    if not position or (len(index) and position - start <= segment.index_interval_bytes):
        return
    max_timestamp = index.max_timestamps[-1] if len(index) else NO_TIMESTAMP
    for step in segment.batches(start):
        if step.position >= position:
            break
        if isinstance(step, WholeBatch):
            index.note(step.header.base_offset, step.position, max_timestamp)
            max_timestamp = max(max_timestamp, step.header.max_timestamp)


def _replay(
    log: PartitionLog,
    segment: Segment,
    position: int,
    index: SparseIndex | None,
    report: RecoveryReport,
) -> int:
    """Replay the batches from `position` on. Returns the end of the last valid one."""
    reached = position
    start = position
    size = segment.size
    next_offset = log.end_offset if position else segment.base_offset
    steps = segment.batches(position) if segment.compacted else scan(segment.read_at, position, size, next_offset)
    for step in steps:
        if isinstance(step, WholeBatch):
            if index is not None:
                index.note(step.header.base_offset, step.position, segment.max_timestamp)
                _note_times(segment, step)
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


def _note_times(segment: Segment, found: WholeBatch) -> None:
    if segment.first_timestamp == NO_TIMESTAMP:
        segment.first_timestamp = found.header.max_timestamp
    segment.max_timestamp = max(segment.max_timestamp, found.header.max_timestamp)


def replay_batch(log: PartitionLog, found: WholeBatch) -> None:
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
    first_offset = log.producers.end_transaction(
        header.producer_id,
        header.producer_epoch,
        header.base_offset,
        coordinator_epoch=marker_coordinator_epoch(found.batch),
        timestamp_ms=header.max_timestamp,
    )
    if first_offset is not None and not commits:
        log.aborted.add(AbortedTransaction(header.producer_id, first_offset, header.base_offset))


def _report_missing(log: PartitionLog, following: Segment, offset: int, report: RecoveryReport) -> None:
    """Report records that are in no file: something removed a segment, or the end of one."""
    reason = f"the records from offset {offset} to it are missing"
    error = CorruptSegmentError(str(following.path), 0, offset, reason)
    logger.error("%s", error, extra={"partition": log.name, "segment": str(following.path)})
    report.damaged.append(error)


def _report_lost_end(log: PartitionLog, checkpoint: PartitionCheckpoint, report: RecoveryReport) -> None:
    """Report that the last records were on the disk and are gone. Their offsets are never assigned again."""
    path, size = (log.segments[-1].path, log.segments[-1].size) if log.segments else (log.folder, 0)
    reason = f"it ends here, but the records up to offset {checkpoint.recovery_offset} had been written"
    error = CorruptSegmentError(str(path), size, log.end_offset, reason)
    logger.error("%s", error, extra={"partition": log.name, "segment": str(path)})
    report.damaged.append(error)
    log.end_offset = checkpoint.recovery_offset
    if not log.resources.read_only:
        log.roll()


def _report_damage(log: PartitionLog, segment: Segment, bad: BadBytes, report: RecoveryReport) -> None:
    error = CorruptSegmentError(str(segment.path), bad.position, log.end_offset, bad.reason)
    logger.error("%s", error, extra={"partition": log.name, "segment": str(segment.path), "position": bad.position})
    report.damaged.append(error)


def _cut(log: PartitionLog, segment: Segment, end: int, size: int, report: RecoveryReport) -> None:
    segment.size = end
    report.truncated_bytes += size - end
    if log.resources.read_only:
        return
    records, reason = describe_tail(segment.read_at, end, size, log.end_offset)
    logger.warning(
        "%s: cut off the last %d bytes, %s from offset %d on: %s. A process that was killed had not acknowledged them. "
        "After a power cut they may have been acknowledged to producers that do not wait for the disk (acks=1), and if "
        "the disk has damaged them since, to any.",
        segment.path,
        size - end,
        f"{records} records" if records else "an unknown number of records",
        log.end_offset,
        reason,
        extra={"partition": log.name, "bytes": size - end, "records": records},
    )
    try:
        log.resources.disk.truncate(segment.file().fd, end)
    except OSError as error:
        raise StorageError(f"{segment.path} could not be truncated: {error.strerror}") from error
