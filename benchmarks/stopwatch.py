"""A stopwatch for consumers: counts records as they are handled, and takes the time of all but the first few.

It needs nothing but Python, so that peers with an environment of their own can use it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

WARM_PART = 0.05
"""Joining a group and filling the first buffers take what they take; it is not the rate."""


class Stopwatch:
    """`tick` is called once for each record, by any thread; `when_done` by whoever handles the last."""

    def __init__(self, count: int, when_done: Callable[[], None] | None = None) -> None:
        self.count = count
        self.warm = max(1, int(count * WARM_PART))
        self.started_s = 0.0
        self.ended_s = 0.0
        self._when_done = when_done
        self._number = itertools.count(1)
        self._marks = frozenset((self.warm, count))
        self._next = self._number.__next__

    def tick(self, value: object = None) -> None:
        number = self._next()
        if number in self._marks:
            self.mark(number)

    def mark(self, number: int) -> None:
        now_s = time.perf_counter()
        if number == self.warm:
            self.started_s = now_s
        if number == self.count:
            self.ended_s = now_s
            if self._when_done is not None:
                self._when_done()

    def add(self, records: int) -> None:
        """So many at once."""
        for _ in range(records):
            self.tick()

    @property
    def rate(self) -> float:
        """Records per second, from the end of the first few to the last."""
        if not self.ended_s:
            raise RuntimeError(f"not all of {self.count} records came")
        return (self.count - self.warm) / (self.ended_s - self.started_s)
