"""A stopwatch for consumers: counts records as they are handled, and takes the time of all but the first few.

It needs nothing but Python, so that peers with an environment of their own can use it.
"""

from __future__ import annotations

import itertools
import threading
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
        self._next = itertools.count(1).__next__
        self._marks = frozenset((self.warm, count))
        self._seen = 0
        self._lock = threading.Lock()

    def tick(self, value: object = None) -> None:
        number = self._next()
        if number in self._marks:
            self.mark(number)

    def add(self, records: int) -> None:
        """So many at once, instead of `tick`."""
        with self._lock:
            before, self._seen = self._seen, self._seen + records
            for number in (self.warm, self.count):
                if before < number <= self._seen:
                    self.mark(number)

    def mark(self, number: int) -> None:
        """This record was handled now: of the one at which it starts, and the last."""
        now_s = time.perf_counter()
        if number == self.warm:
            self.started_s = now_s
        if number == self.count:
            self.ended_s = now_s
            if self._when_done is not None:
                self._when_done()

    @property
    def rate(self) -> float:
        """Records per second, from the end of the first few to the last."""
        if not self.ended_s:
            raise RuntimeError(f"not all of {self.count} records came")
        return (self.count - self.warm) / (self.ended_s - self.started_s)
