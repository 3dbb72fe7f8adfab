"""The system clock, and waiting for a condition or a timeout on any clock."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.abc import Clock


class SystemClock:
    """`abc.Clock` on the clocks of this machine."""

    __slots__ = ()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, duration_s: float) -> None:
        time.sleep(max(0.0, duration_s))

    def wait_on(self, condition: threading.Condition, timeout_s: float | None) -> None:
        condition.wait(timeout_s)


@runtime_checkable
class WaitingClock(Protocol):
    """A clock that a program advances, and that must therefore know who waits for it."""

    def wait_on(self, condition: threading.Condition, timeout_s: float | None) -> None: ...


def wait_on(clock: Clock, condition: threading.Condition, timeout_s: float | None) -> None:
    """Wait, holding the condition, until it is notified or `timeout_s` has passed on this clock; None: no timeout.

    As with any condition, the caller must check again after waking up. A clock without `wait_on` is assumed to run like
    the machine's.
    """
    if isinstance(clock, WaitingClock):
        clock.wait_on(condition, timeout_s)
    else:
        condition.wait(timeout_s)
