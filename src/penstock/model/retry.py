"""What to do after a failure: whether to try again, and after which delay."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ConfigError, Reject, SerdeError

NEVER_AGAIN: Final[tuple[type[BaseException], ...]] = (Reject, SerdeError)
"""Errors that are never retried: undecodable bytes stay undecodable."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts with exponential backoff and jitter.

    The delay before attempt `n + 1` is `first_delay_s * factor ** (n - 1)`, at most `max_delay_s`. A random part of it,
    up to `jitter`, is left out, so that what failed together is not retried together.
    """

    attempts: int | None = 5
    """How often to try, the first time included; None: no limit."""
    first_delay_s: float = 0.1
    """The delay before the second attempt."""
    factor: float = 2.0
    """How many times longer each delay is than the previous one."""
    max_delay_s: float = 30.0
    """The longest delay."""
    jitter: float = 0.5
    """The random part of each delay: 0 for none, 1 for anything from no delay to the whole."""
    on: Mapping[type[BaseException], Retry] = field(default_factory=dict)
    """Other policies for these errors and their subclasses; the most specific class applies."""

    def __post_init__(self) -> None:
        attempts = self.attempts
        if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
            raise ConfigError(f"Retry(attempts={attempts!r}): must be an integer >= 1, or None for no limit")
        for name in ("first_delay_s", "max_delay_s", "factor", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"Retry({name}={value!r}): must be a number")
        if not (self.first_delay_s >= 0 and self.max_delay_s >= 0 and self.factor >= 1):
            raise ConfigError("Retry: delays must not be negative, and factor must be 1 or more")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"Retry(jitter={self.jitter!r}): must be between 0 and 1")
        for kind in self.on:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"Retry(on={{{kind!r}: ...}}): the keys must be exception classes")

    def policy_for(self, error: BaseException) -> Retry:
        """The policy that applies to this error."""
        for kind in type(error).__mro__:
            if kind in self.on:
                return self.on[kind]
        return self

    def goes_on_after(self, attempts: int, error: BaseException) -> bool:
        """Whether to try again after this many attempts, of which the last one failed with `error`."""
        limit = self.policy_for(error).attempts
        return not isinstance(error, NEVER_AGAIN) and (limit is None or attempts < limit)

    def delay_after(self, attempts: int, error: BaseException, chance: random.Random) -> float | None:
        """The delay after this many attempts, of which the last one failed with `error`; None: give up."""
        if not self.goes_on_after(attempts, error):
            return None
        return self.policy_for(error).backoff_s(attempts, chance)

    def backoff_s(self, attempts: int, chance: random.Random) -> float:
        """The delay after this many attempts."""
        whole_s = min(self.max_delay_s, self.first_delay_s * self.factor ** min(attempts - 1, 64))
        return whole_s * (1 - self.jitter * chance.random())

    def delays_s(self) -> Iterator[float]:
        """The delay before the second attempt, the third, and so on without end."""
        chance, attempts = random.Random(), 0
        while True:
            attempts += 1
            yield self.backoff_s(attempts, chance)
