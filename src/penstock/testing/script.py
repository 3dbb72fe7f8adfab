"""The script of faults that a faulty part follows.

faults.fail("save", StoreUnavailableError("no route"))                 # the next save fails, and nothing is saved
faults.fail("save", StoreUnavailableError("timeout"), after=True)      # it is saved, but the answer is lost
faults.fail("load", error, passes=2, times=None)                       # from the third on, until `heal`
faults.delay("renew", 30.0)                                            # takes 30 s on the clock
faults.fail_randomly(0.1, error, seed=7)                               # one call in ten, before or after
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from penstock.abc import Clock
from penstock.model.clock import SystemClock

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Countdown:
    """Which calls are meant: `times` of them, behind the first `passes`; None: all behind those."""

    passes: int
    times: int | None

    def is_due(self) -> bool:
        """Whether this call is one of them. Counts it."""
        if self.passes:
            self.passes -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0

    @property
    def is_over(self) -> bool:
        return self.times is not None and self.times <= 0


@dataclass(frozen=True, slots=True)
class _Fault:
    operation: str
    countdown: Countdown
    error: Exception | None = None
    after: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _RandomFaults:
    rng: random.Random
    chance: float
    error: Exception
    operations: frozenset[str]


class Faults:
    """An interceptor that follows a script. Without one it only counts. May be changed at any time, by any thread."""

    def __init__(self, operations: Collection[str], clock: Clock | None = None) -> None:
        self.calls: Counter[str] = Counter()
        """How often each operation was asked for, whether it failed or not."""
        self.failed: Counter[str] = Counter()
        """How often each operation failed because of the script."""
        self._operations = frozenset(operations)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._random: _RandomFaults | None = None

    def fail(
        self, operation: str, error: Exception, *, passes: int = 0, times: int | None = 1, after: bool = False
    ) -> None:
        """Let `passes` calls through, then fail `times` of them; None for all until `heal`.

        With `after`, the operation takes effect, and who asked for it is told that it failed: a lost answer.
        """
        self._add(_Fault(self._checked(operation), Countdown(passes, times), error=error, after=after))

    def delay(self, operation: str, duration_s: float, *, passes: int = 0, times: int | None = 1) -> None:
        """Let `passes` calls through, then have `times` of them take so long before they do anything."""
        self._add(_Fault(self._checked(operation), Countdown(passes, times), delay_s=duration_s))

    def fail_randomly(
        self, chance: float, error: Exception, *, operations: Collection[str] = (), seed: int | None = None
    ) -> int:
        """Fail each call, of these operations or of any, with this chance; one half of them after they took effect.

        Gives the seed, which is logged as a warning too, so that a test that fails shows it: the same seed and the same
        calls in the same order fail in the same way.
        """
        seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        logger.warning("random faults with seed %d", seed)
        chosen = frozenset(map(self._checked, operations)) or self._operations
        with self._lock:
            self._random = _RandomFaults(random.Random(seed), chance, error, chosen)
        return seed

    def heal(self) -> None:
        """No faults any more."""
        with self._lock:
            self._faults.clear()
            self._random = None

    def call(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        delay_s, error, after = self._next(operation)
        if delay_s:
            self._clock.sleep(delay_s)
        if error is not None and not after:
            raise error.with_traceback(None)
        result = function(*args, **kwargs)
        if error is not None:
            raise error.with_traceback(None)
        return result

    def _next(self, operation: str) -> tuple[float, Exception | None, bool]:
        """What is to happen to this call: how long it takes, how it fails, and whether it does so after its effect."""
        delay_s, error, after = 0.0, None, False
        with self._lock:
            self.calls[operation] += 1
            for fault in [fault for fault in self._faults if fault.operation == operation]:
                if error is not None and fault.error is not None:
                    continue  # one failure at a time: this one is for a later call
                if fault.countdown.is_due():
                    delay_s += fault.delay_s
                    error, after = (fault.error, fault.after) if fault.error is not None else (error, after)
            self._faults = [fault for fault in self._faults if not fault.countdown.is_over]
            chances = self._random
            if error is None and chances is not None and operation in chances.operations:
                drawn = chances.rng.random()
                if drawn < chances.chance:
                    error, after = chances.error, drawn < chances.chance / 2
            self.failed[operation] += error is not None
        return delay_s, error, after

    def _checked(self, operation: str) -> str:
        if operation not in self._operations:
            raise ValueError(f"{operation!r} is no operation; there are {', '.join(sorted(self._operations))}")
        return operation

    def _add(self, fault: _Fault) -> None:
        if fault.countdown.is_over:
            raise ValueError(f"a fault that happens {fault.countdown.times} times never happens")
        with self._lock:
            self._faults.append(fault)
