"""The circuit breaker: a run of failures is no reason to empty a topic into the dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.abc import Clock
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Breaker:
    """When so many records in a row would be given up, nothing is handled for a while.

    Then one record is tried. If it succeeds all goes on, if not the pause is repeated, twice as long each time. What
    was about to be given up stays where it is, and is tried again after the pause. Records that are rejected, or that
    cannot be decoded, say nothing about the handler's health and do not count.
    """

    after: int = 20
    """So many in a row; 0 for no breaker."""
    pause_s: float = 5.0
    """How long the first pause is."""
    max_pause_s: float = 300.0
    """The longest pause."""

    def __post_init__(self) -> None:
        if self.after < 0 or self.pause_s <= 0 or self.max_pause_s < self.pause_s:
            raise ConfigError("Breaker: after must be 0 or more, pause_s above 0, and max_pause_s no less than it")


class Circuit(StrEnum):
    CLOSED = "closed"
    """All is well: records flow."""
    OPEN = "open"
    """Nothing is handled."""
    TRYING = "trying"
    """One record is let through, to see."""


class CircuitBreaker:
    """The state of one breaker. Used by the consumer's loop alone."""

    def __init__(self, breaker: Breaker, clock: Clock) -> None:
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
        """A record was handled: all is well."""
        self._in_a_row = 0
        if self.circuit is not Circuit.CLOSED:
            self.circuit = Circuit.CLOSED
            self._pauses = 0
            self.reason = ""

    def may_give_up(self, error: str) -> bool:
        """A record would be given up. False when it is one too many in a row: keep it, and wait."""
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
        """Whether nothing may be handled now. After the pause, one record may."""
        if self.circuit is Circuit.OPEN and self._clock.monotonic_s() >= self._until_s:
            self.circuit = Circuit.TRYING
        return self.circuit is Circuit.OPEN

    @property
    def opens_again_in_s(self) -> float:
        """How long until one record is tried."""
        return max(0.0, self._until_s - self._clock.monotonic_s()) if self.circuit is Circuit.OPEN else 0.0
