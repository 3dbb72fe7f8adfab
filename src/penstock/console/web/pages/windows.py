"""The window of a checkpoint as a picture: what is finished, in progress and failing from `start` to `next`.

A window may hold millions of records and thousands of runs. The picture has a fixed number of columns, so that what is
sent to the browser does not grow with it; a record that fails is never narrower than can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.model import Checkpoint

COLUMNS: Final = 600
NARROWEST_FAILING: Final = 4
_NARROWEST: Final = 0.5

Strip = tuple[str, float, float]
"""Columns that are alike: finished, failing, claimed or waiting; where they begin, and how many. The rest is in
progress."""


def strips(checkpoint: Checkpoint) -> list[Strip]:
    """From the bottom up: what comes later lies on top. Runs that fall into one column are drawn as one."""
    start, width = checkpoint.start, checkpoint.next - checkpoint.start
    if width <= 0:
        return []
    scale = COLUMNS / width
    claimed = [(each.first, each.end) for each in checkpoint.claims if each.owner]
    waiting = [(each.first, each.end) for each in checkpoint.claims if not each.owner]
    drawn = [
        (kind, round(left, 1), round(right - left, 1))
        for kind, runs in (("claimed", claimed), ("waiting", waiting), ("finished", checkpoint.finished))
        for left, right in _merged(((first - start) * scale, (end - start) * scale) for first, end in runs)
    ]
    spots: dict[int, Strip] = {}
    for failing in checkpoint.failing:
        wide = max(NARROWEST_FAILING, scale)
        left = min(max(0.0, (failing.pointer - start) * scale), COLUMNS - wide)
        spots.setdefault(int(left / NARROWEST_FAILING), ("failing", round(left, 1), round(wide, 1)))
    return drawn + list(spots.values())


def _merged(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Ascending spans; those with less than half a column between them become one, and none is narrower than that."""
    last: tuple[float, float] | None = None
    for left, right in spans:
        left = min(max(0.0, left), COLUMNS - _NARROWEST)
        right = min(float(COLUMNS), max(right, left + _NARROWEST))
        if last is not None and left - last[1] < _NARROWEST:
            last = last[0], max(last[1], right)
            continue
        if last is not None:
            yield last
        last = left, right
    if last is not None:
        yield last
