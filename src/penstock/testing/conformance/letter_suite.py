"""What the cases for dead letters share: letters to put, and looking at all that a case has put."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from penstock.abc import DeadLetters
from penstock.model import DeadLetter, LetterFilter, LetterState, Record
from penstock.model.letter import letter_id
from penstock.testing.conformance.suite import Suite

T = TypeVar("T")

SETTLE_S: Final = 60.0
"""How long something in another thread may take."""
ANY_STATE: Final = frozenset(LetterState)

_BYTES: Final = (
    None,
    b"",
    b"\x00",
    b"plain",
    b"\xff\xfe\x00\x80",
    "größe".encode(),
    b"penstock-letter",
    bytes(range(256)),
)
_NAMES: Final = ("trace", "trace", "", "größe", "penstock-letter", "penstock-letter-headers", "a'b\"c%s:x")
_KINDS: Final = ("ValueError", "TimeoutError", "Reject")
_WORDS: Final = ("no such order", "größe", "100%", "a'b", "_", "\\", "ValueError", "line\nbreak", "CASE", "case")


class LetterSuite(Suite[DeadLetters]):
    """The base of all cases for dead letters. Each case has a group of its own, by which it finds its letters."""

    def setUp(self) -> None:
        super().setUp()
        self.group = self.fresh_name("group")

    def letter(self, number: int = 0, **changes: object) -> DeadLetter:
        """A letter of this case's group. Another number is another record."""
        return replace(plain_letter(self.group, number), **changes)  # type: ignore[arg-type]

    def random_letters(self, count: int) -> list[DeadLetter]:
        return [random_letter(self.rng, self.group, number) for number in range(count)]

    def all(self, letters: DeadLetters) -> list[DeadLetter]:
        """Everything that this case has put, in whatever state."""
        return list(letters.browse(LetterFilter(group=self.group, states=ANY_STATE), 1_000_000))

    def one(self, letters: DeadLetters) -> DeadLetter:
        """The only letter of this case."""
        found = self.all(letters)
        assert len(found) == 1, f"one letter was put, and {len(found)} are there"
        return found[0]

    def states(self, letters: DeadLetters) -> list[LetterState]:
        return [letter.state for letter in self.all(letters)]


def plain_letter(group: str, number: int) -> DeadLetter:
    topic, partition = "orders", number % 3
    return DeadLetter(
        id=letter_id(group, topic, partition, number),
        group=group,
        record=Record(topic, partition, number, b"key", b"value", (("trace", b"1"),), 1_700_000_000_000 + number),
        error=f"ValueError: no such order {number}",
        error_kind="ValueError",
        traceback='Traceback (most recent call last):\n  File "app.py", line 1\nValueError: no such order\n',
        attempts=3,
        first_ms=1_700_000_001_000,
        last_ms=1_700_000_002_000 + number,
        handler="bill",
        handler_version="1",
    )


def random_letter(rng: random.Random, group: str, number: int) -> DeadLetter:
    """Anything that a letter may be, but for its size."""
    topic, partition = rng.choice(("orders", "clicks", "orders.retry")), rng.randrange(4)
    pointer = rng.choice((number, number + 2**40, number + 2**70))
    headers = tuple((rng.choice(_NAMES), rng.choice(_BYTES)) for _ in range(rng.choice((0, 0, 1, 3, 6))))
    kind = rng.choice(_KINDS)
    first_ms = rng.randrange(1_700_000_000_000, 1_700_000_000_050)
    return DeadLetter(
        id=letter_id(group, topic, partition, pointer),
        group=group,
        record=Record(
            topic,
            partition,
            pointer,
            rng.choice(_BYTES),
            rng.choice(_BYTES),
            headers,
            rng.choice((None, 0, 1_700_000_000_000)),
        ),
        error=f"{kind}: {' '.join(rng.choices(_WORDS, k=rng.randrange(3)))}",
        error_kind=kind,
        traceback=rng.choice(("", "Traceback …\n")),
        attempts=rng.randrange(1, 9),
        first_ms=first_ms,
        last_ms=first_ms + rng.randrange(50),
        handler=rng.choice(("bill", "ship")),
        handler_version=rng.choice(("", "1.2.0")),
    )


def random_filter(rng: random.Random, letters: Sequence[DeadLetter], group: str) -> LetterFilter:
    """Some of what can be asked for, of the letters of one group."""

    def maybe(choices: Sequence[T]) -> T | None:
        return rng.choice(choices) if rng.random() < 0.35 else None

    times_ms = range(1_699_999_999_990, 1_700_000_000_110)
    some = rng.sample(letters, min(len(letters), rng.randrange(1, 10))) if rng.random() < 0.25 else []
    return LetterFilter(
        ids=frozenset(letter.id for letter in some) | (frozenset({"unknown"}) if some else frozenset()),
        group=group,
        topic=maybe(("orders", "clicks", "orders.retry", "nothing")),
        partition=maybe((0, 1, 2, 3, 9)),
        error_kind=maybe((*_KINDS, "valueerror", "Value")),
        error_contains=maybe((*_WORDS, "", ":", "%", "case n", "Value")),
        since_ms=maybe(times_ms),
        until_ms=maybe(times_ms),
        states=frozenset(rng.sample(list(LetterState), rng.randrange(5))),
    )
