"""The real clock, on the event loop that the broker runs on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class LoopClock:
    """`contracts.Clock` by asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)
