"""A limit on how much happens in a second."""

from __future__ import annotations

from typing import Final

from penstock.abc import Clock
from penstock.errors import ConfigError

_ROUNDING: Final = 1e-6


class TokenBucket:
    """Lets `rate_per_s` things happen in a second, evenly. What was not used is saved up, but for `burst` at most."""

    def __init__(self, rate_per_s: float, clock: Clock, burst: float = 1.0) -> None:
        if not 0 < rate_per_s < float("inf"):
            raise ConfigError(f"a rate is more than 0 in a second, and {rate_per_s} is not; leave it away for no limit")
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._counted_s = clock.monotonic_s()

    def acquire(self) -> None:
        """Return when the next thing may happen."""
        while (missing := 1.0 - self._count()) > _ROUNDING:
            self._clock.sleep(missing / self._rate_per_s)
        self._tokens -= 1.0

    def _count(self) -> float:
        now_s = self._clock.monotonic_s()
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._rate_per_s)
        self._counted_s = now_s
        return self._tokens
