"""The real clock, and how to wait for something or for a time, whichever comes first, on any clock."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.abc import Clock


class SystemClock:
    """`abc.Clock` by the clocks of the machine."""

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
    """A clock whose time does not pass by itself, and which therefore must know who waits for it."""

    def wait_on(self, condition: threading.Condition, timeout_s: float | None) -> None: ...


def wait_on(clock: Clock, condition: threading.Condition, timeout_s: float | None) -> None:
    """Wait, holding the condition, until it is notified or `timeout_s` has passed on this clock; None: for ever.

    As with any condition, who is woken looks again: at what it waits for, and at the clock. A clock without a way of
    its own to do this is taken to run like the machine's.
    """
    if isinstance(clock, WaitingClock):
        clock.wait_on(condition, timeout_s)
    else:
        condition.wait(timeout_s)
