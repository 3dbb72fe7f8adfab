"""Counters of a consumer since its start, which metrics read on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip
"""Upper bounds of the buckets for durations; longer ones are in a last bucket of their own."""


class Timings:
    """A histogram of durations with fixed buckets."""

    __slots__ = ("steps", "total_s")

    def __init__(self) -> None:
        self.steps = [0] * (len(BOUNDS_S) + 1)
        """How many are in each bucket; not cumulative."""
        self.total_s = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """Add `count` durations of `duration_s` each."""
        self.steps[bisect_left(BOUNDS_S, duration_s)] += count
        self.total_s += duration_s * count

    def add_laps(self, laps: Iterable[tuple[int, float]]) -> None:
        """Add laps: the number of records, and the seconds they took together."""
        steps = self.steps
        for count, taken_s in laps:
            steps[bisect_left(BOUNDS_S, taken_s / count)] += count
            self.total_s += taken_s

    def add_all(self, other: Timings) -> None:
        self.steps = [ours + theirs for ours, theirs in zip(self.steps, other.steps, strict=True)]
        self.total_s += other.total_s


@dataclass(slots=True)
class Counts:
    """Counters of this process. One thread at a time writes; readers may be slightly behind."""

    succeeded: int = 0
    """Records whose handler returned."""
    failed: int = 0
    """Attempts that ended in an error. A batch that fails as a whole counts once."""
    retried: int = 0
    """Failed attempts that are followed by another one."""
    exhausted: int = 0
    """Records that were given up and became dead letters."""
    ignored: int = 0
    """Records finished without their handler: handled before, or meant for another group."""
    expired: int = 0
    """Pointers skipped because retention deleted their records before they were read."""
    assigned: int = 0
    """Partitions assigned by the group."""
    revoked: int = 0
    """Partitions released with everything saved."""
    lost: int = 0
    """Partitions that moved to other members before they could be saved."""
    handling: Timings = field(default_factory=Timings)
    """How long handlers took for a record, once timings are observed (`OBSERVED.is_timed`). For up to 32 fast ones in a
    row, their mean."""
    saving: Timings = field(default_factory=Timings)
    """How long saving a checkpoint took, including waits for an unavailable store."""

    def add(self, other: Counts) -> None:
        """Add the counters of another consumer."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Timings):
                mine.add_all(theirs)
            else:
                setattr(self, name, mine + theirs)
