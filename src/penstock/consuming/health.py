"""Health: whether a consumer gets on. That it is alive says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.abc import Clock, Stream
from penstock.consuming.handlers import Handler
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.consuming.loop import Loop

STALLED_S: Final = 60.0
"""A partition with something to do in which nothing was finished for so long is stalled."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """How one partition stands."""

    partition: int
    start: int
    """Everything before it is finished."""
    end: int | None
    """Behind the last record there is; None when the stream cannot be asked."""
    in_flight: int
    failing: int
    idle_s: float
    """How long ago something was last finished here."""

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Health:
    """How a consumer stands."""

    topic: str
    group: str
    is_running: bool
    partitions: tuple[PartitionHealth, ...]
    problems: tuple[str, ...]
    """What keeps it from getting on, in words."""
    processed: int
    delivered: int

    @property
    def is_healthy(self) -> bool:
        return self.is_running and not self.problems

    @property
    def lag(self) -> int | None:
        lags = [each.lag for each in self.partitions]
        return None if any(lag is None for lag in lags) else sum(lag for lag in lags if lag is not None)


def health_of(loop: Loop | None, stream: Stream, handler: Handler, group: str, clock: Clock) -> Health:
    if loop is None:
        return Health(stream.topic, group, False, (), ("it has not been started",), 0, 0)
    now_s = clock.monotonic_s()
    partitions = []
    gone = [counts for partition, counts in list(loop.past.items()) if partition not in loop.shares]
    processed, delivered = (sum(count) for count in zip((0, 0), *gone, strict=True))
    problems = [text for text in loop.problems() if text]
    for share in list(loop.shares.values()):
        try:
            end: int | None = stream.span(share.partition)[1]
        except PenstockError as error:
            end = None
            problems.append(str(error))
        tracker = share.tracker
        each = PartitionHealth(
            share.partition,
            tracker.start,
            end,
            share.in_flight,
            tracker.failing_count,
            now_s - share.moved_s,
        )
        processed += tracker.processed
        delivered += tracker.delivered
        partitions.append(each)
        if each.lag and each.idle_s >= STALLED_S:
            problems.append(
                f"partition {each.partition}: nothing was finished for {each.idle_s:.0f} s, and {each.lag} wait"
            )
    return Health(stream.topic, group, not loop.is_stopping, tuple(partitions), tuple(problems), processed, delivered)
