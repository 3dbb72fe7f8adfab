"""Finding records in a partition by offset or time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CorruptSegmentError
from penstock.log.batches.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, StoredRecord, records_of
from penstock.log.batches.scan import BadBytes, WholeBatch
from penstock.log.disk import OpenFile
from penstock.log.segment import Segment

if TYPE_CHECKING:
    from penstock.log.partition import PartitionLog


class Slice(NamedTuple):
    """Consecutive batches in a segment file, ready to send or read. The last one may be cut."""

    file: OpenFile
    position: int
    length: int
    end_offset: int
    """Every record in the slice is before this offset; some after the slice may be, too."""


def read_slice(
    log: PartitionLog, offset: int, max_bytes: int, limit: int, *, at_least_one: bool = True
) -> Slice | None:
    log.check_offset(offset, max(limit, log.log_start_offset))
    if offset >= limit or not log.segments:
        return None
    segment = log.segment_for(offset)
    position = segment.locate(offset)
    while position >= segment.size:
        number = log.segments.index(segment) + 1
        if number == len(log.segments):
            return None
        following = log.segments[number]
        if segment.next_offset <= offset < following.base_offset:
            reason = f"the records up to offset {following.base_offset} are missing: a file was lost"
            raise CorruptSegmentError(str(segment.path), segment.size, offset, reason)
        segment, position = following, following.locate(offset)
    end = segment.end_before(limit, position)
    length = _wanted(segment, position, end, max_bytes, at_least_one) if position < end else 0
    if not length:
        return None
    outcome = segment.verify(position, position + length)
    if isinstance(outcome, BadBytes):
        raise CorruptSegmentError(str(segment.path), outcome.position, offset, outcome.reason)
    return Slice(
        segment.file(), position, outcome - position, segment.index.offset_behind(outcome, segment.next_offset)
    )


def _wanted(segment: Segment, position: int, end: int, max_bytes: int, at_least_one: bool) -> int:
    """How many bytes to serve: as many as fit, but at least the whole first batch."""
    available = end - position
    if max_bytes >= available:
        return available
    prefix = segment.read_at(position, LENGTH_PREFIX_BYTES)
    first = int.from_bytes(prefix[8:12], "big") + LENGTH_PREFIX_BYTES
    if first <= max_bytes or not HEADER_BYTES <= first <= available:
        return max(max_bytes, HEADER_BYTES)
    return first if at_least_one else 0


def first_at_or_after(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after a time; None if there is none. CorruptSegmentError if it
    may be in damaged data: a later one would skip records silently."""
    for segment in log.segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= log.log_start_offset:
            continue
        for found in _sound(log, segment, segment.index.position_for_time(timestamp)):
            if found.header.max_timestamp >= timestamp:
                for record in records_of(found.batch):
                    if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                        return record.offset, record.timestamp
    return None


def largest_timestamp(log: PartitionLog) -> tuple[int, int] | None:
    """If several records have the largest timestamp, the first one."""
    best: StoredRecord | None = None
    live = [segment for segment in log.segments if segment.next_offset > log.log_start_offset and segment.size]
    for segment in sorted(live, key=lambda candidate: (-candidate.max_timestamp, candidate.base_offset)):
        if best is not None and best.timestamp >= segment.max_timestamp:
            break
        # If the log starts within a segment, its largest timestamp may belong to a deleted record.
        whole = segment.base_offset >= log.log_start_offset
        start = segment.index.position_for_time(segment.max_timestamp) if whole else 0
        for found in _sound(log, segment, start):
            if best is None or found.header.max_timestamp > best.timestamp:
                records = [record for record in records_of(found.batch) if record.offset >= log.log_start_offset]
                candidates = records if best is None else [best, *records]
                best = max(candidates, key=lambda record: (record.timestamp, -record.offset), default=None)
            if best is not None and best.timestamp == segment.max_timestamp:
                break
    return None if best is None else (best.offset, best.timestamp)


def _sound(log: PartitionLog, segment: Segment, position: int) -> Iterator[WholeBatch]:
    """The batches from `position` on that the log still holds; raises at damage, unless all of it is deleted."""
    bad: BadBytes | None = None
    reached = segment.base_offset
    for step in segment.batches(position):
        if isinstance(step, BadBytes):
            bad = step
            continue
        if bad is not None and step.header.base_offset > log.log_start_offset:
            break
        bad = None
        reached = step.header.next_offset
        if reached > log.log_start_offset:
            yield step
    if bad is not None:
        raise CorruptSegmentError(str(segment.path), bad.position, reached, bad.reason)
