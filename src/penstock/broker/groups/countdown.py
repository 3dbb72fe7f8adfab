"""A timeout that is extended far more often than it expires, such as a member's session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.contracts import Clock, Timer

_ROUNDING_S: Final = 1e-6
"""Less than this is a rounding error, not time left."""


class Countdown:
    """Calls `at_zero` once the time has passed, unless it is restarted or stopped before.

    Extending it, as every heartbeat does, needs no new timer: the running one sees at its end that time is left, and
    waits for the rest.
    """

    __slots__ = ("_armed_until_s", "_at_zero", "_clock", "_ends_at_s", "_timer")

    def __init__(self, clock: Clock, at_zero: Callable[[], None]) -> None:
        self._clock = clock
        self._at_zero = at_zero
        self._ends_at_s: float | None = None
        self._armed_until_s = 0.0
        self._timer: Timer | None = None

    @property
    def running(self) -> bool:
        return self._ends_at_s is not None

    def start(self, delay_ms: int) -> None:
        """Restart from now, whatever was left before."""
        delay_s = max(delay_ms, 0) / 1000
        self._ends_at_s = self._clock.monotonic_s() + delay_s
        if self._timer is not None and self._armed_until_s <= self._ends_at_s:
            return
        self._arm(delay_s)

    def stop(self) -> None:
        self._ends_at_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_until_s = self._clock.monotonic_s() + delay_s
        self._timer = self._clock.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._ends_at_s is None:
            return
        left_s = self._ends_at_s - self._clock.monotonic_s()
        if left_s > _ROUNDING_S:
            self._arm(left_s)
            return
        self._ends_at_s = None
        self._at_zero()
