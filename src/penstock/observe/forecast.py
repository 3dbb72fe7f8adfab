"""Forecasts for a reader at the recent rates. Pure functions; time is passed in.

Samples are (time in ms, value), in the order of their times. Everything here is an estimate from a few samples; what
cannot be known is None rather than a guess: a rate needs two samples.

The three questions, with one example throughout. A topic takes 100 records a second of 1,000 bytes each and keeps them
for an hour; a group reads 80 a second and is 18,000 records behind:

    lag in seconds   its next record was appended when the partition's end passed it: 18,000 / 100 = 180 s ago
    time to drain    never: the lag grows by 20 a second. If it read 110 a second: 18,000 / (110 - 100) = 1,800 s
    time to loss     what it reads gets older by 0.2 s a second (it reads 80 s worth of records in 100 s), and an hour
                     is reached after (3,600 - 180) / 0.2 = 17,100 s
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

Sample = tuple[int, float]
"""Milliseconds since 1970, and the value."""

GROWTH_THAT_COUNTS: Final = 0.05
"""A lag grows when at least this part of what is appended stays unread; less is the noise of commits."""


def steady(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the last decrease of their value or time.

    Offsets only grow. A decrease means that a topic was recreated, a group was reset, or the clock was set: earlier
    samples say nothing about the future.
    """
    for index in range(len(samples) - 1, 0, -1):
        (before_ms, before), (at_ms, value) = samples[index - 1], samples[index]
        if value < before or at_ms <= before_ms:
            return samples[index:]
    return samples


def rate_per_s(samples: Sequence[Sample]) -> float | None:
    """The growth rate of an offset. None without two samples.

    [(0, 500), (10_000, 1_500)] is (1,500 - 500) / 10 s = 100 a second.
    """
    kept = steady(samples)
    if len(kept) < 2:
        return None
    (first_ms, first), (last_ms, last) = kept[0], kept[-1]
    return (last - first) / (last_ms - first_ms) * 1000


def trend_per_s(samples: Sequence[Sample]) -> float | None:
    """The growth rate of a fluctuating value, measured from trough to trough; negative when it shrinks.

    The lag of a reader that commits every five seconds is a sawtooth: up with appends, down with the commit. So the
    lowest value of the older half of the samples is compared with the lowest of the newer half:

    [(0, 10), (5_000, 510), (10_000, 10), (15_000, 510)] is (10 - 10) / 10 s = 0 a second
    [(0, 10), (5_000, 510), (10_000, 1_010)] is (510 - 10) / 5 s = 100 a second
    """
    if len(samples) < 2:
        return None
    middle = len(samples) // 2
    older_ms, older = min(samples[:middle], key=lambda sample: sample[1])
    newer_ms, newer = min(samples[middle:], key=lambda sample: sample[1])
    return None if newer_ms <= older_ms else (newer - older) / (newer_ms - older_ms) * 1000


def is_growing(lag: float, lag_trend_per_s: float | None, append_rate_per_s: float | None) -> bool:
    """Whether a lag grows by more than noise: with 100 records a second appended, by more than 5 a second.

    A lag in seconds works as well: time is appended at 1 second a second while records are.
    """
    if not lag or lag_trend_per_s is None:
        return False
    return lag_trend_per_s > GROWTH_THAT_COUNTS * (append_rate_per_s or 0.0)


def time_appended_per_s(ends: Sequence[Sample]) -> float:
    """The append rate for a lag in seconds: 1 while records are appended.

    Infinite while none are: the oldest record waits ever longer then, but the lag does not grow.
    """
    return 1.0 if rate_per_s(ends) else float("inf")


def time_to_drain_s(lag: float, lag_trend_per_s: float | None) -> float | None:
    """When the lag will be gone: 18,000 records, 10 fewer each second, are gone in 18,000 / 10 = 1,800 s; and so are
    180 seconds that get fewer by 0.1 each second.

    0 when there is none; None when it does not shrink, or when that is unknown.
    """
    if lag <= 0:
        return 0.0
    if lag_trend_per_s is None or lag_trend_per_s >= 0:
        return None
    return lag / -lag_trend_per_s


def loss_by_age_s(age_s: float | None, ageing: float | None, retention_ms: int | None) -> float | None:
    """When a topic with retention by time will remove the reader's next record.

    `age_s` is the age of that record, `ageing` by how much that age grows each second: 1 for a reader that stands
    still, 0 for one that keeps its distance, below 0 for one that catches up. 180 s old, ageing by 0.2, and an hour of
    retention: (3,600 - 180) / 0.2 = 17,100 s. A group that is reset to an earlier offset may seem to age faster than
    time passes; that counts as 1.

    No topic removes a record before this age. It may do so later, as brokers remove whole segments, once the youngest
    record in one is too old, and check every few minutes: the answer is the earliest time.
    """
    if age_s is None or retention_ms is None or retention_ms < 0:
        return None
    left_s = retention_ms / 1000 - age_s
    if left_s <= 0:
        return 0.0
    if ageing is None or ageing <= 0:
        return None
    return left_s / min(ageing, 1.0)


def loss_by_size_s(
    lag: int, lag_trend_per_s: float | None, record_bytes: float | None, retention_bytes: int | None
) -> float | None:
    """When a partition with retention by size will remove the reader's next record.

    It does when the records from that one to the end exceed the limit. 18,000 records of 1,000 bytes are 18 MB; with 20
    more each second, 50 MB are reached after (50 - 18) MB / (20 x 1,000 B/s) = 1,600 s. As with age, brokers may keep a
    segment more.
    """
    if retention_bytes is None or retention_bytes < 0 or not record_bytes:
        return None
    left_bytes = retention_bytes - lag * record_bytes
    if left_bytes <= 0:
        return 0.0
    growth_per_s = (lag_trend_per_s or 0.0) * record_bytes
    return left_bytes / growth_per_s if growth_per_s > 0 else None


def loss_by_pace_s(distance: int, start_rate_per_s: float | None, read_rate_per_s: float | None) -> float | None:
    """When the start of a partition will overtake a reader, at their recent rates.

    For partitions whose retention or size is unknown. A start that is 6,000 records behind the reader and moves by 100
    a second while it reads 80: 6,000 / (100 - 80) = 300 s.
    """
    if start_rate_per_s is None or read_rate_per_s is None or start_rate_per_s <= read_rate_per_s:
        return None
    return max(0, distance) / (start_rate_per_s - read_rate_per_s)


def soonest_s(times_s: Iterable[float | None]) -> float | None:
    """The first of several times; None (never) when all are None."""
    return min((each for each in times_s if each is not None), default=None)


WINDOW_MS: Final = 60_000
"""What "recent" means. Long enough to span several commits of a reader, short enough to show changes."""
FEWEST: Final = 3
"""This many are kept however old they are: when looks are far apart, a minute holds too few of them."""
MOST: Final = 64


class Samples:
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
