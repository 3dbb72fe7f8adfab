"""What a process keeps open from one task to the next."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closeable(Protocol):
    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closeable)


class KeptOpen(Generic[Kept]):
    """Open things by their keys, the least recently used of which gives way to one too many.

    They belong to the process that opened them: one that was forked from it opens its own. Used by one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pid = os.getpid()
        self._open: OrderedDict[Hashable, Kept] = OrderedDict()

    def get(self, key: Hashable, opened: Callable[[], Kept]) -> Kept:
        if self._pid != os.getpid():
            self._pid, self._open = os.getpid(), OrderedDict()
        if key not in self._open:
            self._open[key] = opened()
            if len(self._open) > self._most:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return self._open[key]

    def drop(self, key: Hashable) -> None:
        """Close it, so that the next use opens another."""
        kept = self._open.pop(key, None)
        if kept is not None:
            kept.close()
