"""The finished records of a partition as runs of pointers."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from penstock.model import Pointer, Runs


class RunSet:
    """Half-open intervals that neither touch nor overlap. A million consecutive records cost two numbers."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, runs: Iterable[tuple[Pointer, Pointer]] = ()) -> None:
        self._firsts: list[Pointer] = []
        self._ends: list[Pointer] = []
        for first, end in runs:
            self.add(first, end)

    def add(self, first: Pointer, end: Pointer) -> None:
        """Add everything from `first` up to, not including, `end`. Overlaps are allowed."""
        if first >= end:
            return
        firsts, ends = self._firsts, self._ends
        low = bisect.bisect_left(ends, first)  # the first run that ends at or after `first`: it touches or overlaps
        high = bisect.bisect_right(firsts, end)  # after the last run that begins at or before `end`
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
        firsts[low:high] = [first]
        ends[low:high] = [end]

    def pop_from(self, start: Pointer) -> Pointer:
        """Remove the runs that continue from `start` without a gap, and return their end."""
        while self._firsts and self._firsts[0] <= start:
            start = max(start, self._ends[0])
            del self._firsts[0], self._ends[0]
        return start

    def __contains__(self, pointer: Pointer) -> bool:
        index = bisect.bisect_right(self._firsts, pointer) - 1
        return index >= 0 and pointer < self._ends[index]

    def __iter__(self) -> Iterator[tuple[Pointer, Pointer]]:
        return iter(zip(self._firsts, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def end(self) -> Pointer | None:
        """The end of the last run."""
        return self._ends[-1] if self._ends else None

    def as_runs(self) -> Runs:
        return tuple(self)
