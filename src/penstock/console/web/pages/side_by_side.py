"""Two texts beside each other, line by line, with what differs marked. Pure data: drawing it is the page's."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

LONGEST_LINES: Final = 2_000
"""Comparing takes time that grows with the square of the lines; of longer texts the beginning is compared."""
_LONGEST_LINE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of each side; None where one side has nothing in its place."""

    left: str | None
    right: str | None

    @property
    def differs(self) -> bool:
        return self.left != self.right


def side_by_side(left: str, right: str) -> list[Pair]:
    """The lines of both, equal ones beside each other."""
    lefts, rights = _lines(left), _lines(right)
    matcher = difflib.SequenceMatcher(None, lefts, rights, autojunk=False)
    return [
        pair
        for _, left_from, left_to, right_from, right_to in matcher.get_opcodes()
        for pair in _paired(lefts[left_from:left_to], rights[right_from:right_to])
    ]


def is_cut(text: str) -> bool:
    """Whether only the beginning of this text, or of one of its lines, is compared."""
    lines = text.splitlines()
    return len(lines) > LONGEST_LINES or any(len(line) > _LONGEST_LINE for line in lines[:LONGEST_LINES])


def only_near_differences(pairs: Sequence[Pair], around: int = 3) -> Iterator[Pair | None]:
    """The pairs that differ with a few before and after them; None stands where equal ones were left out."""
    near = {index + offset for index, pair in enumerate(pairs) if pair.differs for offset in range(-around, around + 1)}
    was_left_out = False
    for index, pair in enumerate(pairs):
        if index in near:
            was_left_out = False
            yield pair
        elif not was_left_out:
            was_left_out = True
            yield None


def _paired(lefts: Sequence[str], rights: Sequence[str]) -> Iterator[Pair]:
    for left, right in zip_longest(lefts, rights):
        yield Pair(left, right)


def _lines(text: str) -> list[str]:
    return [line[:_LONGEST_LINE] for line in text.splitlines()[:LONGEST_LINES]]
