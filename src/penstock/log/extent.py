"""About how many bytes records take in the files: by the sparse indexes, without reading a record.

Between two entries of an index, records are taken to be of one size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment


def offset_after(log: PartitionLog, start: int, size_bytes: int, stop: int) -> tuple[int, int]:
    """The offset at which `size_bytes` from `start` on end, `stop` at the latest, and how many bytes that is, about.

    It is behind `start` if `stop` is: a record that is larger than all of it counts, too.
    """
    used_bytes = 0
    offset = start
    for segment in log.segments:
        if segment.next_offset <= offset:
            continue
        if offset >= stop:
            break
        offset = max(offset, segment.base_offset)
        here = position_about(segment, offset)
        behind = position_about(segment, min(stop, segment.next_offset))
        left_bytes = size_bytes - used_bytes
        if behind - here > left_bytes:
            reached = min(stop, max(start + 1, offset_about(segment, here + left_bytes)))
            return reached, used_bytes + max(left_bytes, position_about(segment, reached) - here)
        used_bytes += behind - here
        offset = segment.next_offset
    return stop, used_bytes


def position_about(segment: Segment, offset: int) -> int:
    """Where in the file the record with this offset stands, about."""
    index = segment.index
    return _between(index.offsets, index.positions, segment.next_offset, segment.size, segment.base_offset, 0, offset)


def offset_about(segment: Segment, position: int) -> int:
    """Which offset the record at this place of the file has, about."""
    index = segment.index
    return _between(index.positions, index.offsets, segment.size, segment.next_offset, 0, segment.base_offset, position)


def _between(
    given: Sequence[int],
    wanted: Sequence[int],
    last_given: int,
    last_wanted: int,
    first: int,
    first_wanted: int,
    at: int,
) -> int:
    """What `wanted` is where `given` is `at`, on the straight line between the entries around it."""
    entry = bisect_right(given, at) - 1
    low, low_wanted = (given[entry], wanted[entry]) if entry >= 0 else (first, first_wanted)
    following = entry + 1
    high, high_wanted = (given[following], wanted[following]) if following < len(given) else (last_given, last_wanted)
    if high <= low or at >= high:
        return high_wanted
    return low_wanted + (high_wanted - low_wanted) * (at - low) // (high - low)
