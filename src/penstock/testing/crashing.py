"""Wrappers that kill their own process, with SIGKILL, before or after a named step.

    store = CrashingStore(SqliteStore(path), at="save", nth=3, after=True)    # dies when the third save has counted

For use in a child process. The code under test needs no hook: it gets the wrapper in place of the part.

    point = CrashPoint(None)                                                  # never dies, but counts
    store, stream = InterceptedStore(store, point), InterceptedStream(stream, point)
    ...                                                                       # point.steps is {"claim": 1, "save": 7}

So a harness finds out the steps of a run, and then lets a run die at each of them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from penstock.abc import CheckpointStore, DeadLetters, Stream, TopicStream
from penstock.testing.interception import (
    InterceptedLetters,
    InterceptedStore,
    InterceptedStream,
    InterceptedTopicStream,
)

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS: Final = InterceptedStore.OPERATIONS | InterceptedTopicStream.OPERATIONS | InterceptedLetters.OPERATIONS


def die() -> None:
    """End this process as a power cut would: nothing is flushed or closed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process survived its own SIGKILL")


class CrashPoint:
    """Kills the process at the `nth` call of the operation `at`: before it takes effect, or `after` it did but before
    the caller knows. None: it only counts. Wrappers that share one count together."""

    def __init__(self, at: str | None, nth: int = 1, after: bool = False) -> None:
        if at is not None and at not in OPERATIONS:
            raise ValueError(f"{at!r} is not a step; steps are {', '.join(sorted(OPERATIONS))}")
        if nth < 1:
            raise ValueError(f"nth {nth} must be an integer >= 1")
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


class CrashingTopicStream(InterceptedTopicStream):
    """Steps: the methods of `abc.TopicStream`, poll and commit of its feeds, and acknowledge for each receipt."""

    def __init__(self, stream: TopicStream, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(stream, CrashPoint(at, nth, after))


class CrashingStream(InterceptedStream):
    """A stream whose topics count their steps together."""

    def __init__(self, stream: Stream, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(stream, CrashPoint(at, nth, after))


class CrashingLetters(InterceptedLetters):
    """Dead letters. Steps: the methods of `abc.DeadLetters`."""

    def __init__(self, letters: DeadLetters, at: str, nth: int = 1, after: bool = False) -> None:
        super().__init__(letters, CrashPoint(at, nth, after))
