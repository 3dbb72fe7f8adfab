"""Requests that are sent again: recognised by their idempotency keys, within a window of limited size and time.

A sender whose answer was lost sends again what is already stored. It is told so, and nothing is stored twice. While the
first request is under way, the second one waits for the same outcome.
"""

from __future__ import annotations

import collections
import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")


@dataclass(slots=True)
class SeenKey(Generic[W]):
    """A key that was seen."""

    digest: bytes
    """Digest of the body: the same key with another body is a mistake of the sender."""
    under_way: W | None
    """What waits for the outcome; None: it is stored."""
    at_s: float = 0.0


def digest_of(body: bytes | None) -> bytes:
    return hashlib.blake2b(body or b"", digest_size=16).digest()


class Repeats(Generic[W]):
    """Keys of requests that are under way or stored. One thread uses it."""

    def __init__(self, size: int, window_s: float) -> None:
        self._size = size
        self._window_s = window_s
        self._under_way: dict[bytes, SeenKey[W]] = {}
        self._stored: collections.OrderedDict[bytes, SeenKey[W]] = collections.OrderedDict()
        """In the order in which they were stored."""

    def find(self, key: bytes, now_s: float) -> SeenKey[W] | None:
        found = self._under_way.get(key)
        if found is None:
            self._forget(now_s)
            found = self._stored.get(key)
        return found

    def begin(self, key: bytes, digest: bytes, under_way: W) -> None:
        if self._size:
            self._under_way[key] = SeenKey(digest, under_way)

    def stored(self, key: bytes, now_s: float) -> None:
        known = self._under_way.pop(key, None)
        if known is not None:
            self.add(key, known.digest, now_s)

    def failed(self, key: bytes) -> None:
        """Forget a key whose request failed: the next request with it is a new one."""
        self._under_way.pop(key, None)

    def add(self, key: bytes, digest: bytes, now_s: float) -> None:
        """Add the key of a stored record."""
        self._stored.pop(key, None)
        self._stored[key] = SeenKey(digest, None, now_s)
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self._stored:
            oldest = next(iter(self._stored.values()))
            if len(self._stored) <= self._size and now_s - oldest.at_s <= self._window_s:
                return
            self._stored.popitem(last=False)

    def __len__(self) -> int:
        return len(self._stored)
