"""A clock on which whoever sleeps has slept already."""

from __future__ import annotations


class HastyClock:
    """`abc.Clock` for one thread: time passes by sleeping, and at once."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1_800_000_000_000 + round(self.now_s * 1000)

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s
