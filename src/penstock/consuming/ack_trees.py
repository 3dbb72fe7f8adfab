"""Ack trees: a record that forks into tasks is finished when all of them are.

The acknowledger keeps one number for each record in flight, whatever the size of its tree: each task has a random
number, which is combined into it by exclusive or when the task begins and once more when it ends. It is zero when each
has been seen twice, that is when all that began has ended. (It could be zero by chance, once in 2^64 times.)
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Final

from penstock.abc import Clock

Settled = Callable[[BaseException | None], None]
"""Hears that a tree is finished, or why it failed. Called once, by whichever thread saw it last."""

_BITS: Final = 64


class Tree:
    """What is known about one record in flight."""

    __slots__ = ("expires_s", "number", "open", "settled")

    def __init__(self, number: int, open: int, settled: Settled, expires_s: float) -> None:
        self.number = number
        self.open = open
        self.settled = settled
        self.expires_s = expires_s


class Acknowledger:
    """Keeps the trees of a process. Any thread may call anything."""

    def __init__(self, clock: Clock, seed: int | None = None) -> None:
        self._clock = clock
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._trees: dict[int, Tree] = {}
        self._lock = threading.Lock()
        self.finished = 0
        self.failed = 0
        self.late = 0
        """Tasks that ended after their tree had been given up, or was never known here."""

    def plant(self, settled: Settled, timeout_s: float) -> tuple[int, int]:
        """A tree for a record that is about to be handled. Gives its number, and that of the handler's own task."""
        with self._lock:
            number, task = next(self._numbers), self._task()
            self._trees[number] = Tree(number, task, settled, self._clock.monotonic_s() + timeout_s)
            return number, task

    def fork(self, tree: int) -> int | None:
        """Another task of the tree. Gives its number; None when the tree is settled, and the task need not be done."""
        with self._lock:
            found = self._trees.get(tree)
            if found is None:
                return None
            task = self._task()
            found.open ^= task
            return task

    def done(self, tree: int, task: int) -> None:
        """A task has ended well. What it forked must have begun by now."""
        with self._lock:
            found = self._trees.get(tree)
            if found is None:
                self.late += 1
                return
            found.open ^= task
            if found.open:
                return
            del self._trees[tree]
            self.finished += 1
        found.settled(None)

    def fail(self, tree: int, error: BaseException) -> None:
        """A task has failed for good, and with it the tree."""
        with self._lock:
            found = self._trees.pop(tree, None)
            if found is None:
                self.late += 1
                return
            self.failed += 1
        found.settled(error)

    def drop(self, tree: int) -> None:
        """Nobody wants to hear about the tree any more."""
        with self._lock:
            self._trees.pop(tree, None)

    def is_open(self, tree: int) -> bool:
        return tree in self._trees

    def expire(self) -> int:
        """Fail the trees that have taken too long. Gives how many that were."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            overdue = [tree for tree in self._trees.values() if tree.expires_s <= now_s]
            for tree in overdue:
                del self._trees[tree.number]
            self.failed += len(overdue)
        for tree in overdue:
            tree.settled(TimeoutError("some of the tasks that the record forked into did not end in time"))
        return len(overdue)

    def __len__(self) -> int:
        """How many records are in flight here."""
        return len(self._trees)

    def _task(self) -> int:
        return self._chance.getrandbits(_BITS) or 1
