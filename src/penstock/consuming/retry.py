"""What to do after a failure: try again, when, and how often."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import ConfigError, Reject, SerdeError

NEVER_AGAIN: tuple[type[BaseException], ...] = (Reject, SerdeError)
"""Errors that no other attempt can mend: undecodable bytes stay undecodable."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts with exponential backoff and jitter.

    The delay before attempt `n + 1` is `first_delay_s * factor ** (n - 1)`, at most `max_delay_s`, of which a random
    part of up to `jitter` is left out, so that what failed together does not come back together.
    """

    attempts: int = 5
    """How often a record is tried, the first time included."""
    first_delay_s: float = 0.1
    """The delay before the second attempt."""
    factor: float = 2.0
    """How many times longer each delay is than the one before."""
    max_delay_s: float = 30.0
    """The longest delay."""
    jitter: float = 0.5
    """Between 0, always the whole delay, and 1, anything from none to the whole."""
    on: Mapping[type[BaseException], Retry] = field(default_factory=dict)
    """For these errors, and those derived from them, another policy; the most specific one counts."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"Retry(attempts={self.attempts!r}): a record is tried at least once, so 1 or more")
        if self.first_delay_s < 0 or self.max_delay_s < 0 or self.factor < 1:
            raise ConfigError("Retry: delays must not be negative, and factor must be 1 or more")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"Retry(jitter={self.jitter!r}): use a share between 0 and 1")
        for kind in self.on:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"Retry(on={{{kind!r}: ...}}): the keys are classes of errors")

    def policy_for(self, error: BaseException) -> Retry:
        """The policy that counts for this error."""
        for kind in type(error).__mro__:
            if kind in self.on:
                return self.on[kind]
        return self

    def goes_on_after(self, attempts: int, error: BaseException) -> bool:
        """Whether there is another attempt after this many, of which the last one ended in `error`."""
        return not isinstance(error, NEVER_AGAIN) and attempts < self.policy_for(error).attempts

    def delay_after(self, attempts: int, error: BaseException, chance: random.Random) -> float | None:
        """How long to wait after this many attempts, of which the last one ended in `error`; None: give it up."""
        if not self.goes_on_after(attempts, error):
            return None
        return self.policy_for(error).backoff_s(attempts, chance)

    def backoff_s(self, attempts: int, chance: random.Random) -> float:
        """The delay after this many attempts."""
        whole_s = min(self.max_delay_s, self.first_delay_s * self.factor ** min(attempts - 1, 64))
        return whole_s * (1 - self.jitter * chance.random())
