"""When each record of a partition was appended, as far as one can tell from having looked at its end."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final

MOST_POINTS: Final = 64
"""A partition has no more; beyond it, every second one of the older half goes, so that the past gets coarser."""


@dataclass(slots=True)
class _Point:
    """The partition ended at `end` at least from `first_ms` until `last_ms`."""

    end: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Appended:
    """When a record was appended, and by how much that may be wrong."""

    at_ms: int
    within_ms: int


class Timeline:
    """The end of a partition, look by look.

    The record at pointer 1,200 was appended when the end passed 1,200. With the end at 1,000 at second 10, and at 1,500
    at second 20, the 500 records between share the ten seconds: 1,200 was appended at 10 + 10 x 200.5 / 500 = 14.01 s.
    """

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: list[_Point] = []

    def look(self, at_ms: int, end: int) -> None:
        """The partition ends here now. An end, or a time, that went back begins anew."""
        points = self._points
        if points and (end < points[-1].end or at_ms < points[-1].last_ms):
            points.clear()
        if points and points[-1].end == end:
            points[-1].last_ms = at_ms
            return
        points.append(_Point(end, at_ms, at_ms))
        if len(points) > MOST_POINTS:
            del points[1 : MOST_POINTS // 2 : 2]

    def read(self, pointer: int, at_ms: int) -> None:
        """The record at this pointer says that it was appended then. Not believed where that contradicts a look."""
        points = self._points
        index = bisect.bisect_left(points, pointer, key=lambda point: point.end)
        if index < len(points) and points[index].end == pointer:
            return
        after = points[index] if index < len(points) else None
        before = points[index - 1] if index else None
        if (after is not None and at_ms > after.first_ms) or (before is not None and at_ms < before.last_ms):
            return
        points.insert(index, _Point(pointer, at_ms, at_ms))
        if len(points) > MOST_POINTS:
            del points[1 : MOST_POINTS // 2 : 2]

    def appended(self, pointer: int) -> Appended | None:
        """When the record at this pointer was; None where the timeline does not reach: before it, and at its end."""
        points = self._points
        index = bisect.bisect_right(points, pointer, key=lambda point: point.end)
        if index == 0 or index == len(points):
            return None
        before, after = points[index - 1], points[index]
        gap_ms = max(0, after.first_ms - before.last_ms)
        part = (pointer - before.end + 0.5) / (after.end - before.end)
        return Appended(round(before.last_ms + gap_ms * part), gap_ms)

    def bounds_ms(self, pointer: int) -> tuple[int | None, int | None]:
        """After when, and before when, the record at this pointer was appended, as far as that was seen."""
        points = self._points
        index = bisect.bisect_right(points, pointer, key=lambda point: point.end)
        after_ms = points[index - 1].last_ms if index else None
        return after_ms, points[index].first_ms if index < len(points) else None

    @property
    def began_ms(self) -> int | None:
        """When it was first known how far the partition reached."""
        return self._points[0].first_ms if self._points else None
