"""From ranges of pointers to tasks: large ranges are split so that all cores work, small ones are put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.spark.source.origin import Range

WORTH_A_TASK: Final = 20_000
"""Pointers. A task costs a few milliseconds, in which so many records are read."""
MOST_IN_A_TASK: Final = 4_000_000
"""A task that is tried again begins anew: larger ones are split even when all cores are busy."""


def split(ranges: Iterable[Range], tasks: int) -> list[tuple[Range, ...]]:
    """What each task reads, in the order of the partitions: about equal parts, for about `tasks` tasks.

    There are fewer where there is too little to share, and more where there is too much for so few. A task reads
    pieces of several partitions one after the other; each piece is a run of pointers.
    """
    pieces = [each for each in ranges if each.end > each.start]
    total = sum(each.end - each.start for each in pieces)
    count = max(tasks, -(-total // MOST_IN_A_TASK))
    part = max(-(-total // count), WORTH_A_TASK)
    shares: list[tuple[Range, ...]] = []
    share: list[Range] = []
    room = part
    for piece in pieces:
        start = piece.start
        while start < piece.end:
            taken = min(room, piece.end - start)
            share.append(Range(piece.partition, start, start + taken))
            start += taken
            room -= taken
            if not room:
                shares.append(tuple(share))
                share, room = [], part
    if share:
        shares.append(tuple(share))
    return shares
