"""The last minute or so of a number, for its pace."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.observe.forecast import Sample

WINDOW_MS: Final = 60_000
"""What "of late" means. Long enough to span several commits of a reader, short enough to show what has changed."""
FEWEST: Final = 3
"""So many are kept however old they are: with looks far apart, a minute holds too few of them."""
MOST: Final = 64


class Samples:
    """Samples of one number."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MOST)

    def add(self, at_ms: int, value: float) -> None:
        samples = self._samples
        if samples and at_ms == samples[-1][0]:
            samples.pop()
        elif samples and at_ms < samples[-1][0]:
            samples.clear()
        samples.append((at_ms, value))
        while len(samples) > FEWEST and samples[1][0] <= at_ms - WINDOW_MS:
            samples.popleft()

    def clear(self) -> None:
        self._samples.clear()

    def all(self) -> list[Sample]:
        return list(self._samples)

    @property
    def last(self) -> float | None:
        return self._samples[-1][1] if self._samples else None
