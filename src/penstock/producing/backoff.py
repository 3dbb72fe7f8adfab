"""How long to wait before trying again: longer each time, and never all at the same moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with jitter. How often is tried is not its business: see `delivery_timeout_s`."""

    first_s: float = 0.1
    """Before the second attempt."""
    factor: float = 2.0
    """How many times longer each wait is than the one before."""
    longest_s: float = 10.0
    """The longest wait."""
    jitter: float = 0.2
    """Each wait is longer or shorter by chance, by up to this part of it, so that many producers that lost one broker
    do not come back at once."""
    seed: int | None = None
    """For tests: the same seed gives the same waits."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s:
            raise ConfigError(f"the backoff starts with {self.first_s:g} s: use more than 0 and at most longest_s")
        if not self.factor >= 1:
            raise ConfigError(f"the backoff factor {self.factor:g} is less than 1: waits would get shorter")
        if not 0 <= self.jitter < 1:
            raise ConfigError(f"the jitter {self.jitter:g} is not a part of the wait: use 0 or more, and less than 1")

    def waits_s(self) -> Iterator[float]:
        """Seconds to wait before the second attempt, the third, and so on without end."""
        chance = random.Random(self.seed)
        wait_s = self.first_s
        while True:
            yield wait_s * chance.uniform(1 - self.jitter, 1 + self.jitter)
            wait_s = min(self.longest_s, wait_s * self.factor)
