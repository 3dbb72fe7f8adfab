"""Dead letters with somebody between them and their callers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from penstock.abc import DeadLetters, Features
from penstock.model import DeadLetter, LetterFilter
from penstock.testing.interception import Interceptor


class InterceptedLetters:
    """`abc.DeadLetters`. Its operations are the names of the methods."""

    OPERATIONS: ClassVar = frozenset(["put", "browse", "count", "take", "settle", "discard"])

    def __init__(self, letters: DeadLetters, between: Interceptor) -> None:
        self._letters = letters
        self._between = between

    @property
    def features(self) -> Features:
        return self._letters.features

    def put(self, letters: Sequence[DeadLetter]) -> None:
        self._between.call("put", self._letters.put, letters)

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        return self._between.call("browse", self._letters.browse, which, limit, after)

    def count(self, which: LetterFilter) -> int:
        return self._between.call("count", self._letters.count, which)

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        return self._between.call("take", self._letters.take, ids, taker)

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        self._between.call("settle", self._letters.settle, ids, taker, redriven)

    def discard(self, ids: Collection[str]) -> int:
        return self._between.call("discard", self._letters.discard, ids)

    def close(self) -> None:
        self._letters.close()
