"""Whether a consumer makes progress, not merely whether it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.abc import Clock
from penstock.errors import PenstockError
from penstock.model.text import count_text

if TYPE_CHECKING:
    from penstock.consuming.loop.loop import Loop

STALLED_S: Final = 60.0
"""A partition with lag in which nothing was finished for this long is stalled."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The progress of one partition."""

    partition: int
    start: int
    """Everything before this is finished."""
    end: int | None
    """After the last record; None when the stream cannot be reached, and for a queue."""
    in_flight: int
    failing: int
    idle_s: float
    """How long ago a record was last finished."""
    is_counted: bool = True
    """Whether pointers count records, as `Feature.OFFSETS` says."""
    waiting: int | None = None
    """For a queue: how many records nobody has. None for a partition, and when it is unknown."""

    @property
    def is_behind(self) -> bool:
        """Whether there are records that it has not finished, as far as is known."""
        return self.end is not None and self.end > self.start

    @property
    def lag(self) -> int | None:
        """Records that are not finished. None when it is unknown: the stream cannot be reached, it is a queue that
        does not count records, or records are not counted and it `is_behind`."""
        if self.waiting is not None:
            return self.waiting + self.in_flight
        if self.end is None or (self.is_behind and not self.is_counted):
            return None
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Health:
    """The progress of a consumer."""

    topic: str
    group: str
    is_running: bool
    partitions: tuple[PartitionHealth, ...]
    problems: tuple[str, ...]
    """What keeps it from making progress."""
    processed: int
    delivered: int

    @property
    def is_healthy(self) -> bool:
        return self.is_running and not self.problems

    @property
    def lag(self) -> int | None:
        lags = [each.lag for each in self.partitions]
        return None if any(lag is None for lag in lags) else sum(lag for lag in lags if lag is not None)


def health_of(
    loop: Loop | None,
    topic: str,
    group: str,
    clock: Clock,
    end_of: Callable[[int], int | None],
    *,
    is_counted: bool = True,
    waiting: Callable[[], int | None] = lambda: None,
) -> Health:
    """The health of a consumer. `end_of` returns the end of a partition; None where there is none, as in a queue.
    `is_counted`: the stream has `Feature.OFFSETS`. `waiting` returns how many records of a queue nobody has."""
    if loop is None:
        return Health(topic, group, False, (), ("not running: it was not started, or waits for its topic",), 0, 0)
    now_s = clock.monotonic_s()
    partitions = []
    gone = [counts for partition, counts in list(loop.released_totals.items()) if partition not in loop.partitions]
    processed, delivered = (sum(count) for count in zip((0, 0), *gone, strict=True))
    problems = [text for text in loop.problems() if text]
    for assigned in list(loop.partitions.values()):
        end = left = None
        try:
            end, left = end_of(assigned.partition), waiting()
        except PenstockError as error:
            problems.append(str(error))
        tracker = assigned.tracker
        each = PartitionHealth(
            assigned.partition,
            tracker.start,
            end,
            assigned.in_flight,
            tracker.failing_count,
            now_s - assigned.progressed_s,
            is_counted,
            left,
        )
        processed += tracker.processed
        delivered += tracker.delivered
        partitions.append(each)
        only_delayed = assigned.delayed > 0 and assigned.in_flight == assigned.delayed
        if each.is_behind and each.idle_s >= STALLED_S and not only_delayed:
            behind = "records wait" if each.lag is None else f"{count_text(each.lag, 'record')} wait"
            problems.append(f"partition {each.partition}: nothing finished for {each.idle_s:.0f} s, and {behind}")
    return Health(topic, group, not loop.is_stopping, tuple(partitions), tuple(problems), processed, delivered)
