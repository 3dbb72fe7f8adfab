"""A partition in the hands of a consumer: its lease, its tracker, its state, and what is under way in it."""

from __future__ import annotations

import collections
from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.abc import Clock
from penstock.consuming.lanes import Lane
from penstock.consuming.tracker import Tracker
from penstock.model import Batch, CheckpointKey, Lease, NewRecord, Pointer


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """Records that were handled, and whose outputs wait for the transaction that commits them."""

    batch: Batch
    low: int
    high: int
    begun_ms: int
    outputs: tuple[NewRecord, ...]
    state: dict[bytes, bytes | None]


@dataclass(slots=True, eq=False)
class Share:
    """One partition of a consumer. The loop owns it."""

    key: CheckpointKey
    lease: Lease
    tracker: Tracker
    clock: Clock
    state: dict[bytes, bytes]
    """Keyed state as handlers see it: newer than what is saved."""
    suspects_end: Pointer
    """Up to here, records may have killed the owners before; they are handled one at a time."""
    end: Pointer | None = None
    """Where a run that ends by itself ends."""
    lane: Lane = field(init=False)
    in_flight: int = 0
    """Records read and neither finished nor dropped."""
    record_bytes: float = 0.0
    """How large a record is, about."""
    open_trees: int = 0
    """Records whose handlers have returned, and whose tasks have not all ended."""
    paused: bool = False
    closed: bool = False
    """Given up, or lost: what workers still report about it is not heard."""
    suspects: collections.deque[tuple[Batch, int]] = field(default_factory=collections.deque)
    uncommitted: list[Uncommitted] = field(default_factory=list)
    uncommitted_count: int = 0
    saved_s: float = 0.0
    moved_s: float = 0.0
    """When something was last finished here."""

    def __post_init__(self) -> None:
        self.lane = Lane(self, None)
        self.saved_s = self.moved_s = self.clock.monotonic_s()

    def weigh(self, batch: Batch) -> None:
        """A batch has come, which is not empty: how large are its records?"""
        record_bytes = sum(map(len, filter(None, batch.values()))) / len(batch)
        self.record_bytes = max(record_bytes, (self.record_bytes + record_bytes) / 2)

    @property
    def partition(self) -> int:
        return self.key.partition

    @property
    def is_read(self) -> bool:
        """Whether a run that ends by itself has nothing more to read here."""
        return self.end is not None and self.tracker.position >= self.end

    @property
    def is_at_end(self) -> bool:
        """Whether a run that ends by itself is done with this partition."""
        return self.end is not None and self.tracker.start >= self.end and not self.in_flight

    def finish(self, batch: Batch, low: int, high: int, begun_ms: int) -> None:
        """These records were handled."""
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
        return f"<Share {self.key} from {self.tracker.start}>"


def awaits_reports(shares: Collection[Share]) -> bool:
    """Whether nothing is to be read before a handler has ended: records stand behind one that is tried alone, or a run
    that ends by itself has read all there is."""
    return any(share.suspects for share in shares) or all(share.is_read for share in shares)
