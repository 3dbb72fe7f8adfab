"""What a consumer has done since it was started, in numbers: for metrics, which read them when they are asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip
"""The upper ends of the steps in which durations are counted; what took longer is in a step behind the last."""


class Timings:
    """How often something took how long, in steps, so that its size does not grow."""

    __slots__ = ("steps", "total_s")

    def __init__(self) -> None:
        self.steps = [0] * (len(BOUNDS_S) + 1)
        """How many are in each step, and not in one below it."""
        self.total_s = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """`count` of them took `duration_s` each."""
        self.steps[bisect_left(BOUNDS_S, duration_s)] += count
        self.total_s += duration_s * count

    def add_laps(self, laps: Iterable[tuple[int, float]]) -> None:
        """Of each, so many took so many seconds together."""
        steps = self.steps
        for count, taken_s in laps:
            steps[bisect_left(BOUNDS_S, taken_s / count)] += count
            self.total_s += taken_s

    def add_all(self, other: Timings) -> None:
        self.steps = [ours + theirs for ours, theirs in zip(self.steps, other.steps, strict=True)]
        self.total_s += other.total_s


@dataclass(slots=True)
class Counts:
    """Counted as it happens, in this process alone. One thread at a time writes; whoever reads may be a step behind."""

    succeeded: int = 0
    """Records whose handler returned."""
    failed: int = 0
    """Attempts that ended in an error. A batch that fails as a whole is one."""
    retried: int = 0
    """Of those, the ones after which another attempt was decided upon."""
    exhausted: int = 0
    """Records that were given up, and are with the dead letters."""
    ignored: int = 0
    """Records that were finished without their handler: handled before, or meant for another group."""
    expired: int = 0
    """Pointers that were passed over, as retention had deleted what stood there before it was read."""
    assigned: int = 0
    """Partitions that the group has given us."""
    revoked: int = 0
    """Partitions that were handed back, with everything saved."""
    lost: int = 0
    """Partitions that went to others before anything could be saved."""
    handling: Timings = field(default_factory=Timings)
    """How long handlers took for a record, from when somebody wanted to know (`OBSERVED.is_timed`). Of up to 32 quick
    ones in a row it is their mean."""
    saving: Timings = field(default_factory=Timings)
    """How long it took to save a checkpoint, waiting for a store that was away included."""

    def add(self, other: Counts) -> None:
        """What another consumer has done counts here, too."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Timings):
                mine.add_all(theirs)
            else:
                setattr(self, name, mine + theirs)
