"""The circuit breaker: a run of failures must not empty a topic into the dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.abc import Clock


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Pauses handling when too many records in a row would be given up.

    After the pause one record is tried. If it succeeds, handling resumes; if not, the pause is repeated, twice as long
    each time. Records about to be given up are kept and retried after the pause. Rejected and undecodable records say
    nothing about the handler's health and do not count.
    """

    after: int = 20
    """How many in a row; 0 for no breaker."""
    pause_s: float = 5.0
    """The first pause."""
    max_pause_s: float = 300.0
    """The longest pause."""

    def __post_init__(self) -> None:
        for name in ("after", "pause_s", "max_pause_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"CircuitBreaker({name}={value!r}): must be a number")
        if self.after < 0 or self.pause_s <= 0 or self.max_pause_s < self.pause_s:
            raise ConfigError("CircuitBreaker: after must be >= 0, pause_s > 0, and max_pause_s >= pause_s")


class Circuit(StrEnum):
    CLOSED = "closed"
    """Records are handled."""
    OPEN = "open"
    """Nothing is handled."""
    TRYING = "trying"
    """One record is let through as a test."""


class BreakerState:
    """The state of one breaker. Used by one thread, such as the consumer's loop."""

    def __init__(self, breaker: CircuitBreaker, clock: Clock) -> None:
        self._breaker = breaker
        self._clock = clock
        self._in_a_row = 0
        self._pauses = 0
        self._until_s = 0.0
        self.circuit = Circuit.CLOSED
        self.reason = ""
        self.opened = 0
        """How often it has opened."""

    def succeeded(self) -> None:
        """Close the breaker: a record was handled."""
        self._in_a_row = 0
        if self.circuit is not Circuit.CLOSED:
            self.circuit = Circuit.CLOSED
            self._pauses = 0
            self.reason = ""

    def may_give_up(self, error: str) -> bool:
        """Whether a record may be given up. False when it is one too many in a row: keep it and wait."""
        if not self._breaker.after:
            return True
        self._in_a_row += 1
        if self.circuit is Circuit.CLOSED and self._in_a_row < self._breaker.after:
            return True
        if self.circuit is not Circuit.OPEN:
            pause_s = min(self._breaker.max_pause_s, self._breaker.pause_s * 2 ** min(self._pauses, 32))
            self._pauses += 1
            self._until_s = self._clock.monotonic_s() + pause_s
            self.circuit = Circuit.OPEN
            self.opened += 1
        self.reason = error
        return False

    def is_open(self) -> bool:
        """Whether handling is paused. After the pause, one record may be tried."""
        if self.circuit is Circuit.OPEN and self._clock.monotonic_s() >= self._until_s:
            self.circuit = Circuit.TRYING
        return self.circuit is Circuit.OPEN

    @property
    def opens_again_in_s(self) -> float:
        """How long until one record is tried."""
        return max(0.0, self._until_s - self._clock.monotonic_s()) if self.circuit is Circuit.OPEN else 0.0
