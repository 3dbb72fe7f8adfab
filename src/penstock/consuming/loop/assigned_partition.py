"""A partition assigned to a consumer: its lease, tracker, state, and records in flight."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from penstock.abc import Clock
from penstock.consuming.loop.tracker import Tracker
from penstock.consuming.workers.lanes import Lane
from penstock.model import Batch, CheckpointKey, Lease, NewRecord, Pointer


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """Handled records whose outputs wait for the transaction that commits them."""

    batch: Batch
    low: int
    high: int
    begun_ms: int
    outputs: tuple[NewRecord, ...]
    state: dict[bytes, bytes | None]


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """One partition of a consumer. Owned by the loop."""

    key: CheckpointKey
    lease: Lease
    tracker: Tracker
    clock: Clock
    state: dict[bytes, bytes]
    """Keyed state as handlers see it; newer than what is saved."""
    suspects_end: Pointer
    """Records before this may have killed earlier owners; `SuspectDispatcher` hands them out."""
    end: Pointer | None = None
    """Where a run with an `end` stops."""
    lane: Lane = field(init=False)
    in_flight: int = 0
    """Records read and neither finished nor dropped."""
    delayed: int = 0
    """Records in flight that are not due yet, and records that must not overtake them."""
    record_bytes: float = 0.0
    """Estimated size of a record."""
    open_trees: int = 0
    """Records whose handler has returned and whose tasks have not all ended."""
    paused: bool = False
    closed: bool = False
    """Released or lost: further reports about it are ignored."""
    suspects: collections.deque[tuple[Batch, int]] = field(default_factory=collections.deque)
    """Suspects that are not handed out yet, and records that must not overtake them."""
    suspects_at_once: int = 1
    """How many of them are handed out together."""
    redeliver: Callable[[Pointer, float, str], None] | None = None
    """Returns a failed record to its queue, with a delay and the error. None: it is retried here."""
    uncommitted: list[Uncommitted] = field(default_factory=list)
    uncommitted_count: int = 0
    saved_s: float = 0.0
    progressed_s: float = 0.0
    """When a record was last finished."""

    def __post_init__(self) -> None:
        self.lane = Lane(self, None)
        self.saved_s = self.progressed_s = self.clock.monotonic_s()

    def update_record_size(self, batch: Batch) -> None:
        """Update the estimate from a batch that is not empty."""
        record_bytes = sum(map(len, filter(None, batch.values()))) / len(batch)
        self.record_bytes = max(record_bytes, (self.record_bytes + record_bytes) / 2)

    @property
    def partition(self) -> int:
        return self.key.partition

    @property
    def is_read(self) -> bool:
        """Whether a run with an `end` has read this partition."""
        return self.end is not None and self.tracker.position >= self.end

    @property
    def is_at_end(self) -> bool:
        """Whether a run with an `end` has finished this partition."""
        return self.end is not None and self.tracker.start >= self.end and not self.in_flight

    def finish(self, batch: Batch, low: int, high: int, begun_ms: int) -> None:
        """Mark the records `low` to `high` of a batch as handled."""
        tracker = self.tracker
        if low >= high:
            return
        if not tracker.any_failing:
            tracker.succeeded(batch.edge(low), batch.edge(high), high - low, begun_ms)
            return
        for index in range(low, high):
            pointer = batch.pointer(index)
            if tracker.failing(pointer) is not None:
                tracker.succeeded_after_failing(pointer, batch.edge(index), batch.edge(index + 1), begun_ms)
            else:
                tracker.succeeded(batch.edge(index), batch.edge(index + 1), 1, begun_ms)

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.key} from {self.tracker.start}>"


def awaits_reports(partitions: Collection[AssignedPartition]) -> bool:
    """Whether reading must wait for handlers: suspects are handed out in turn, or all partitions are read to an end."""
    return any(assigned.suspects for assigned in partitions) or all(assigned.is_read for assigned in partitions)
