"""Statistics: calls, and for each analyser the outcome and duration of its calls."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.consuming.deadlines.call import Result, Why

OVERDUE_S: Final = 0.005
"""How long a call may exceed its deadline before it counts as overdue."""
_SMALLEST_S: Final = 1e-6
_GROWTH: Final = 1.05
_BOUNDS_S: Final = tuple(_SMALLEST_S * _GROWTH**step for step in range(430))
"""From a microsecond to about twenty minutes in steps of 5 %, the precision of percentiles."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations, each at most 5 % too high. All are 0 without data."""

    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class AnalyserStatistics:
    answered: int
    """In time."""
    failed: int
    """In time or late."""
    late: int
    """Answers after the deadline."""
    busy: int
    """Calls for which it was not asked because its queue was full."""
    skipped: int
    """Calls that were over before it started."""
    running: int
    """How many of its workers are busy now. If this stays at the number of its workers, they hang."""
    took: Percentiles
    """How long it ran, including late answers and failures."""


@dataclass(frozen=True, slots=True)
class DeadlineStatistics:
    calls: int
    complete: int
    partial: int
    overdue: int
    """Calls that returned more than 5 ms after their deadline: CPU-bound analysers in threads, or machine overload."""
    took: Percentiles
    """How long callers waited."""
    analysers: Mapping[str, AnalyserStatistics]


class Durations:
    """A histogram with steps of 5 % and a fixed size."""

    __slots__ = ("_counts", "_max_s", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._total = 0
        self._max_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(_BOUNDS_S, duration_s)] += 1
        self._total += 1
        self._max_s = max(self._max_s, duration_s)

    def percentiles(self) -> Percentiles:
        return Percentiles(self._at(0.5), self._at(0.99), self._max_s)

    def _at(self, part: float) -> float:
        wanted, seen = part * self._total, 0
        for bound_s, count in zip(_BOUNDS_S, self._counts, strict=False):
            seen += count
            if count and seen >= wanted:
                return min(bound_s, self._max_s)
        return self._max_s


class _Tally:
    __slots__ = ("answered", "busy", "failed", "late", "running", "skipped", "took")

    def __init__(self) -> None:
        self.answered = self.busy = self.failed = self.late = self.running = self.skipped = 0
        self.took = Durations()


class Counting:
    """The counts of one `within`. Thread-safe."""

    def __init__(self, names: Sequence[str], allowed_s: float) -> None:
        self._overdue_s = allowed_s + OVERDUE_S
        self._overdue = 0
        self._lock = threading.Lock()
        self._tallies = {name: _Tally() for name in names}
        self._complete = 0
        self._partial = 0
        self._took = Durations()

    def begun(self, name: str) -> None:
        with self._lock:
            self._tallies[name].running += 1

    def ended(self, name: str, took_s: float, *, failed: bool, in_time: bool) -> None:
        with self._lock:
            tally = self._tallies[name]
            tally.running -= 1
            tally.took.add(took_s)
            if failed:
                tally.failed += 1
            elif in_time:
                tally.answered += 1
            else:
                tally.late += 1

    def skipped(self, name: str) -> None:
        with self._lock:
            self._tallies[name].skipped += 1

    def called(self, result: Result) -> bool:
        """Count a call. True when it is the first overdue one."""
        with self._lock:
            if result.complete:
                self._complete += 1
            else:
                self._partial += 1
                for name, why in result.why.items():
                    if why is Why.BUSY:
                        self._tallies[name].busy += 1
            self._took.add(result.took_s)
            if result.took_s <= self._overdue_s:
                return False
            self._overdue += 1
            return self._overdue == 1

    def snapshot(self) -> DeadlineStatistics:
        with self._lock:
            analysers = {
                name: AnalyserStatistics(
                    tally.answered, tally.failed, tally.late, tally.busy, tally.skipped, tally.running,
                    tally.took.percentiles(),
                )
                for name, tally in self._tallies.items()
            }  # fmt: skip
            return DeadlineStatistics(
                self._complete + self._partial,
                self._complete,
                self._partial,
                self._overdue,
                self._took.percentiles(),
                analysers,
            )
