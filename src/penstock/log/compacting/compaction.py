"""Compaction: keep the last record of each key.

A compacted log has a clean part, which an earlier compaction has processed, and a dirty part after it. When enough of
the log is dirty, a map of the last offset of each key is built, and all segments up to there are rewritten without the
records that have a later one in the map. Offsets never change. A record without a value, a tombstone, deletes its key:
it stays for `delete.retention.ms` after it became clean, so that readers see it, and is then removed.

There are three steps, so that the expensive one blocks nothing:

    plan = compaction.plan(log, now_ms)          # the partition's owner: is there anything to do?
    cleaned = cleaning.run(plan)                 # anywhere: reads sealed segments, writes new files
    compaction.install(log, cleaned)             # the owner: swaps them in, whole or not at all

Never compacted: the active segment, everything from the first open transaction on, and records younger than
`min.compaction.lag.ms`. A segment with a damaged batch is left unchanged and reported.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from penstock.errors import LogError, StorageError
from penstock.log.compacting.cleaning import DEDUPE_BUFFER_BYTES, Cleaned, Plan, SourceSegment
from penstock.log.compacting.swap import MANIFEST, SwapManifest, cleaned_path, decide_swap, finish_swap
from penstock.log.partition import PartitionLog
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment

logger = logging.getLogger(__name__)


def plan(log: PartitionLog, now_ms: int, *, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES) -> Plan | None:
    """What to compact now; None if the topic is not compacted, or not dirty enough yet."""
    if not log.config.compacts or log.failed is not None or not log.segments:
        return None
    _roll_old(log, now_ms)
    first_dirty = log.clean_offset
    if not log.log_start_offset <= first_dirty <= log.end_offset:
        first_dirty = log.log_start_offset
    cleanable = _cleanable(log, first_dirty, now_ms)
    dirty = [segment for segment in cleanable if segment.next_offset > first_dirty]
    if not dirty or not _is_due(log, cleanable, dirty, now_ms):
        return None
    start, end = cleanable[0].base_offset, cleanable[-1].next_offset
    return Plan(
        partition=log.name,
        folder=log.folder,
        sources=tuple(SourceSegment(segment.base_offset, segment.next_offset, segment.size) for segment in cleanable),
        first_dirty_offset=max(first_dirty, start),
        aborted=tuple(log.aborted.between(start, end)),
        last_batches=log.producers.last_batches(),
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        dedupe_buffer_bytes=dedupe_buffer_bytes,
    )


def _roll_old(log: PartitionLog, now_ms: int) -> None:
    """Seal an active segment whose first record is too old, even if nothing more is written to it."""
    active = log.segments[-1]
    limit_ms = min(log.config.segment_ms, log.config.max_compaction_lag_ms)
    if active.size and active.first_timestamp >= 0 and now_ms - active.first_timestamp > limit_ms:
        log.roll()


def _cleanable(log: PartitionLog, first_dirty: int, now_ms: int) -> list[Segment]:
    """The segments up to the first that must not be compacted yet."""
    undecided = log.last_stable_offset
    lag_ms = log.config.min_compaction_lag_ms
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        too_young = lag_ms > 0 and segment.next_offset > first_dirty and segment.newest_ms > now_ms - lag_ms
        if segment.next_offset > undecided or too_young:
            break
        found.append(segment)
    return found


def _is_due(log: PartitionLog, cleanable: list[Segment], dirty: list[Segment], now_ms: int) -> bool:
    dirty_bytes = sum(segment.size for segment in dirty)
    all_bytes = sum(segment.size for segment in cleanable)
    if all_bytes and dirty_bytes / all_bytes > log.config.min_cleanable_dirty_ratio:
        return True
    oldest_ms = min((segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=now_ms)
    return bool(dirty_bytes) and oldest_ms < now_ms - log.config.max_compaction_lag_ms


def install(log: PartitionLog, cleaned: Cleaned) -> bool:
    """Swap the cleaned files in. Returns False, and changes nothing, if their source segments are gone.

    Raises StorageError if the disk refuses. The log then holds all of the old or all of the new.
    """
    for error in cleaned.damaged:
        logger.error("left uncompacted: %s", error, extra={"partition": log.name, "segment": error.file})
    replaced = set(cleaned.replaced)
    present = [(segment.base_offset, segment.next_offset, segment.size) for segment in log.segments if segment.sealed]
    planned = [(source.base_offset, source.next_offset, source.size_bytes) for source in cleaned.plan.sources]
    if log.failed is not None or present[: len(planned)] != planned:
        _discard(cleaned)
        return False
    if replaced:
        _swap(log, cleaned, replaced)
    log.clean_offset = cleaned.clean_offset
    log.aborted.drop(cleaned.forgotten)
    log.write_aborted()
    log.checkpoint()
    return True


def _swap(log: PartitionLog, cleaned: Cleaned, replaced: set[int]) -> None:
    try:
        # The recovery point must not be in a segment that is about to change.
        if log.checkpointed_offset <= cleaned.plan.end_offset:
            log.checkpoint()
        _decide(log, SwapManifest(remove=sorted(replaced), install=list(cleaned.files)))
    except (OSError, StorageError):
        _discard(cleaned)
        raise
    try:
        finish_swap(log.folder, log.resources)
    except (OSError, LogError) as error:
        raise log.refuse_writes(
            f"{log.name}: compacted segments could not be installed ({error}); the partition accepts no more writes "
            "until the broker is restarted on a healthy disk, which completes the swap. Nothing is lost."
        ) from error
    for segment in log.segments:
        if segment.base_offset in replaced:
            log.resources.forget(segment)
    fresh = [Segment(log.folder, base, log.resources, log.config.index_interval_bytes) for base, _ in cleaned.files]
    kept = [segment for segment in log.segments if segment.base_offset not in replaced]
    segments = sorted([*kept, *fresh], key=lambda segment: segment.base_offset)
    for segment, following in pairwise(segments):
        if segment in fresh:
            segment.load_sealed(following.base_offset)
    log.segments[:] = segments


def _decide(log: PartitionLog, manifest: SwapManifest) -> None:
    try:
        decide_swap(log.folder, manifest, log.resources)
    except OSError as error:
        # If the manifest got its name before the disk failed, the swap would happen after a restart. Undo it.
        (log.folder / MANIFEST).unlink(missing_ok=True)
        raise StorageError(f"{log.name}: compacted segments could not be installed: {error.strerror}") from error


def _discard(cleaned: Cleaned) -> None:
    for base, _ in cleaned.files:
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
            cleaned_path(cleaned.plan.folder, base, suffix).unlink(missing_ok=True)
