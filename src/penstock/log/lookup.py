"""Finding records in a partition: by offset, by time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CorruptSegmentError
from penstock.log.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, StoredRecord, records_of
from penstock.log.disk import OpenFile
from penstock.log.scan import Bad, walk
from penstock.log.segment import Segment

if TYPE_CHECKING:
    from penstock.log.partition import PartitionLog


class Slice(NamedTuple):
    """A run of batches in a segment file, ready to be sent or read. The last one may be cut."""

    file: OpenFile
    position: int
    length: int
    end_offset: int
    """Every record in the slice is before this offset; some behind the slice may be too."""


def read_slice(
    log: PartitionLog, offset: int, max_bytes: int, limit: int, *, at_least_one: bool = True
) -> Slice | None:
    log.check_offset(offset, max(limit, log.log_start_offset))
    if offset >= limit or not log.segments:
        return None
    segment = log.segment_for(offset)
    position = segment.locate(offset)
    while position >= segment.size:
        following = _after(log, segment)
        if following is None:
            return None
        segment, position = following, 0
    end = segment.size if limit >= segment.next_offset else segment.locate(limit)
    while position < end:
        length = _wanted(segment, position, end, max_bytes, at_least_one)
        if not length:
            return None
        outcome = segment.verify(position, position + length)
        if not isinstance(outcome, Bad):
            end_offset = segment.index.offset_behind(outcome, segment.next_offset)
            return Slice(segment.file(), position, outcome - position, end_offset)
        position = _behind_damage(segment, outcome, offset)
    return None


def _after(log: PartitionLog, segment: Segment) -> Segment | None:
    number = log.segments.index(segment) + 1
    return log.segments[number] if number < len(log.segments) else None


def _wanted(segment: Segment, position: int, end: int, max_bytes: int, at_least_one: bool) -> int:
    """How many bytes to serve: as many as fit, but never only a part of the first batch."""
    available = end - position
    if max_bytes >= available:
        return available
    prefix = segment.read_at(position, LENGTH_PREFIX_BYTES)
    first = int.from_bytes(prefix[8:12], "big") + LENGTH_PREFIX_BYTES
    if first <= max_bytes or not HEADER_BYTES <= first <= available:
        return max(max_bytes, HEADER_BYTES)
    return first if at_least_one else 0


def _behind_damage(segment: Segment, bad: Bad, offset: int) -> int:
    """Where to go on if the offset asked for stands behind the damage; raises if it is lost in it."""
    for position, base_offset, _, _, _ in walk(segment.read_at, bad.end, segment.size):
        if base_offset <= offset:
            return position
        break
    raise CorruptSegmentError(str(segment.path), bad.position, offset, bad.reason)


def first_at_or_after(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    for segment in log.segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= log.log_start_offset:
            continue
        start = segment.index.position_for_time(timestamp)
        for position, _, last, max_timestamp, size in walk(segment.read_at, start, segment.size):
            if max_timestamp < timestamp or last < log.log_start_offset:
                continue
            for record in _records(segment, position, size):
                if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                    return record.offset, record.timestamp
    return None


def largest_timestamp(log: PartitionLog) -> tuple[int, int] | None:
    """Of several records with the largest timestamp, the first."""
    live = [segment for segment in log.segments if segment.next_offset > log.log_start_offset]
    if not live:
        return None
    segment = max(live, key=lambda candidate: candidate.max_timestamp)
    start = segment.index.position_for_time(segment.max_timestamp)
    for position, _, last, max_timestamp, size in walk(segment.read_at, start, segment.size):
        if max_timestamp == segment.max_timestamp and last >= log.log_start_offset:
            record = max(_records(segment, position, size), key=lambda found: (found.timestamp, -found.offset))
            return record.offset, record.timestamp
    return None


def _records(segment: Segment, position: int, size: int) -> list[StoredRecord]:
    outcome = segment.verify(position, position + size)
    if isinstance(outcome, Bad):
        return []
    return list(records_of(segment.read_at(position, size)))
