"""Deleting old records, by age, by size or on request, in whole segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.log.segment import Segment

if TYPE_CHECKING:
    from penstock.log.partition import PartitionLog


def delete_before(log: PartitionLog, offset: int) -> None:
    """Move the log's start, durably, then remove the segments before it."""
    if offset <= log.log_start_offset:
        return
    if log.segments and log.segments[-1].next_offset <= offset and log.segments[-1].size:
        log.roll()
    gone = [segment for segment in log.segments[:-1] if segment.next_offset <= offset]
    _let_go(log, gone, offset)


def expire(log: PartitionLog, now_ms: int) -> int:
    if not log.config.deletes or not log.segments:
        return 0
    gone = _too_old(log, now_ms)
    gone += _too_many_bytes(log, gone)
    if not gone:
        return 0
    if gone[-1] is log.segments[-1]:
        log.roll()
    _let_go(log, gone, max(log.log_start_offset, gone[-1].next_offset))
    return len(gone)


def _too_old(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The oldest segments whose records are all older than the topic keeps."""
    keep_ms = log.config.retention_ms
    gone: list[Segment] = []
    if keep_ms < 0:
        return gone
    for segment in log.segments:
        visible = segment.next_offset <= log.high_watermark and (segment.size > 0 or segment.sealed)
        if not visible or now_ms - segment.newest_ms <= keep_ms:
            break
        gone.append(segment)
    return gone


def _too_many_bytes(log: PartitionLog, already: list[Segment]) -> list[Segment]:
    """The oldest segments without which the partition still holds as much as the topic keeps."""
    keep_bytes = log.config.retention_bytes
    gone: list[Segment] = []
    if keep_bytes < 0:
        return gone
    rest = log.segments[len(already) : -1]
    excess = log.size_bytes - sum(segment.size for segment in already) - keep_bytes
    for segment in rest:
        if excess < segment.size or segment.next_offset > log.high_watermark:
            break
        excess -= segment.size
        gone.append(segment)
    return gone


def _let_go(log: PartitionLog, gone: list[Segment], start: int) -> None:
    """Store the new log start, then remove the segments before it: a crash in between changes nothing. On a full disk
    it is the other way round: there is no space to store it before they are removed."""
    before, log.log_start_offset = log.log_start_offset, start
    try:
        log.checkpoint()
    except StorageError:
        if log.failed is not None or not gone:
            log.log_start_offset = before
            raise
        _remove(log, gone)
        log.checkpoint()
    else:
        _remove(log, gone)


def _remove(log: PartitionLog, gone: list[Segment]) -> None:
    if not gone:
        return
    log.segments[:] = [segment for segment in log.segments if segment not in gone]
    for segment in gone:
        log.resources.forget(segment)
        segment.path.unlink(missing_ok=True)
        segment.index_path.unlink(missing_ok=True)
    if log.aborted.drop_before(log.log_start_offset):
        log.write_aborted()
