"""A clock that a test advances by hand.

    clock = VirtualClock()
    worker = threading.Thread(target=clock.sleep, args=(60,))
    worker.start()
    clock.wait_for_sleepers(1)           # the worker sleeps now
    clock.advance(60)                    # and now it is awake

Time never passes by itself: a thread that sleeps, or waits with `penstock.model.clock.wait_on`, does so until
`advance` is called.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Final

_NS: Final = 1_000_000_000
_ROUNDING_S: Final = 1e-6
"""A shorter time limit is left over by rounding. It passes by itself, as no test advances by so little, and a loop
that waits for its time limit would never end."""
_LEAVING_S: Final = 10.0
"""How long, in real time, `advance` waits for a woken thread to run."""


@dataclass(order=True, slots=True)
class _Sleeper:
    """A thread to be woken at a time. Those of one time are woken in the order in which they fell asleep."""

    due_ns: int
    number: int
    condition: threading.Condition | None = field(compare=False)
    """The condition it waits on, if any."""
    woken: threading.Event = field(default_factory=threading.Event, compare=False)
    gone: threading.Event = field(default_factory=threading.Event, compare=False)


class VirtualClock:
    """`abc.Clock` whose time passes by `advance`. Thread-safe."""

    def __init__(self, wall_ms: int = 1_800_000_000_000, monotonic_s: float = 1_000.0) -> None:
        self._began_ms = wall_ms
        self._began_s = monotonic_s
        self._passed_ns = 0
        self._rounded_s = 0.0
        self._numbers = itertools.count()
        self._sleepers: list[_Sleeper] = []
        self._changed = threading.Condition()
        self._advancing = threading.Lock()

    def monotonic_s(self) -> float:
        return self._began_s + self._passed_ns / _NS + self._rounded_s

    def wall_ms(self) -> int:
        return self._began_ms + self._passed_ns // 1_000_000

    @property
    def sleepers(self) -> int:
        """How many threads sleep, or wait with a time limit."""
        with self._changed:
            return len(self._sleepers)

    def sleep(self, duration_s: float) -> None:
        """Return once the time has been advanced by this much."""
        if self._is_no_time(duration_s):
            return
        sleeper = self._enter(duration_s, None)
        try:
            sleeper.woken.wait()
        finally:
            self._leave(sleeper)

    def wait_on(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait, holding the condition, until it is notified or the time has been advanced by `timeout_s`."""
        if timeout_s is None:
            condition.wait()
            return
        if self._is_no_time(timeout_s):
            return
        sleeper = self._enter(timeout_s, condition)
        try:
            condition.wait()
        finally:
            self._leave(sleeper)

    def advance(self, duration_s: float) -> None:
        """Let this much time pass.

        Sleepers are woken in the order of their times, each at its time: the clock continues when the thread has left
        its sleep. It does not wait for what the thread does then; use `wait_for_sleepers` to see it asleep again.
        """
        if duration_s < 0:
            raise ValueError(f"time does not go back: {duration_s} s")
        with self._advancing:
            goal_ns = self._passed_ns + round(duration_s * _NS)
            while (sleeper := self._next_due(goal_ns)) is not None:
                self._wake(sleeper)

    def wait_for_sleepers(self, count: int, timeout_s: float = 10.0) -> None:
        """Return once at least this many threads sleep, or wait with a time limit. TimeoutError after real seconds. A
        thread that was notified otherwise counts until it has run."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while (asleep := len(self._sleepers)) < count:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"after {timeout_s:g} s, {asleep} of {count} threads sleep")
                self._changed.wait(left_s)

    def _is_no_time(self, duration_s: float) -> bool:
        if 0 < duration_s < _ROUNDING_S:
            self._rounded_s = _ROUNDING_S
        return duration_s < _ROUNDING_S

    def _go_to(self, passed_ns: int) -> None:
        if passed_ns > self._passed_ns:
            self._passed_ns = passed_ns
            self._rounded_s = 0.0

    def _enter(self, duration_s: float, condition: threading.Condition | None) -> _Sleeper:
        with self._changed:
            sleeper = _Sleeper(self._passed_ns + round(duration_s * _NS), next(self._numbers), condition)
            heapq.heappush(self._sleepers, sleeper)
            self._changed.notify_all()
        return sleeper

    def _leave(self, sleeper: _Sleeper) -> None:
        sleeper.gone.set()
        with self._changed:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    def _next_due(self, until_ns: int) -> _Sleeper | None:
        """The next sleeper to wake, with the clock set to its time; or None, with the clock set to `until_ns`. Both
        atomically, so that a thread that falls asleep meanwhile is either woken or sleeps from then on."""
        with self._changed:
            if not self._sleepers or self._sleepers[0].due_ns > until_ns:
                self._go_to(until_ns)
                return None
            sleeper = heapq.heappop(self._sleepers)
            self._go_to(sleeper.due_ns)
            sleeper.woken.set()
            return sleeper

    def _wake(self, sleeper: _Sleeper) -> None:
        if sleeper.condition is None:
            left = sleeper.gone.wait(_LEAVING_S)
            assert left, f"a sleeper was woken and did not move within {_LEAVING_S:g} s"
            return
        with sleeper.condition:
            sleeper.condition.notify_all()
