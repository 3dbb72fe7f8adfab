"""Wrappers that kill their own process, with SIGKILL, before or after a named step.

    store = CrashingStore(SqliteStore(path), at="save", nth=3, after=True)    # dies when the third save has counted

To be used in a child process. The code under test needs no hook for it: it is given the wrapper in place of the part.

    point = CrashPoint(None)                                                  # dies nowhere, but counts
    store, stream = InterceptedStore(store, point), InterceptedStream(stream, point)
    ...                                                                       # point.steps is {"claim": 1, "save": 7}

So a harness finds out which steps a run has, and how many, and then has a run die at each of them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from penstock.abc import CheckpointStore, DeadLetters, Stream, Streams
from penstock.testing.intercepted_letters import InterceptedLetters
from penstock.testing.intercepted_store import InterceptedStore
from penstock.testing.intercepted_stream import InterceptedStream, InterceptedStreams

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS: Final = InterceptedStore.OPERATIONS | InterceptedStream.OPERATIONS | InterceptedLetters.OPERATIONS


def die() -> None:
    """End this process as a power cut of it would: nothing is flushed, closed or said."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process lived on after it was killed")


class CrashPoint:
    """Kills the process at the `nth` call of the operation named `at`: before it takes effect, or `after` it did and
    nobody has heard of it. None: it only counts. Wrappers that share one count together."""

    def __init__(self, at: str | None, nth: int = 1, after: bool = False) -> None:
        if at is not None and at not in OPERATIONS:
            raise ValueError(f"{at!r} is no step; there are {', '.join(sorted(OPERATIONS))}")
        if nth < 1:
            raise ValueError(f"there is no call number {nth}: the first is 1")
        self.at = at
        self.nth = nth
        self.after = after
        self.steps: Counter[str] = Counter()
        """How often each operation was called, by any thread."""
        self._lock = threading.Lock()

    def call(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            self.steps[operation] += 1
            is_here = operation == self.at and self.steps[operation] == self.nth
        if is_here and not self.after:
            die()
        result = function(*args, **kwargs)
        if is_here:
            die()
        return result


class CrashingStore(InterceptedStore):
    """A checkpoint store. Steps: the methods of `abc.CheckpointStore`, and begin, transaction.save, commit."""

    def __init__(self, store: CheckpointStore, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(store, CrashPoint(at, nth, after))


class CrashingStream(InterceptedStream):
    """A stream. Steps: the methods of `abc.Stream`, poll and commit of its feeds, and acknowledge for each receipt."""

    def __init__(self, stream: Stream, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(stream, CrashPoint(at, nth, after))


class CrashingStreams(InterceptedStreams):
    """A system of streams: the steps of all its streams count together."""

    def __init__(self, streams: Streams, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(streams, CrashPoint(at, nth, after))


class CrashingLetters(InterceptedLetters):
    """Dead letters. Steps: the methods of `abc.DeadLetters`."""

    def __init__(self, letters: DeadLetters, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(letters, CrashPoint(at, nth, after))
