"""Deduplication: handle records with the same idempotency key once within a window."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Sequence

from penstock.consuming.counts import Counts
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.options import IdOf
from penstock.dead_letters.headers import redrive_of
from penstock.model import Batch, Pointer

Spans = list[tuple[int, int]]
FindHandled = Callable[[Collection[str]], frozenset[str]]
"""Returns those of the given ids whose records were handled before."""


class Deduplication:
    """Knows the ids in flight, and asks about those of new records.

    Redriven dead letters carry an id of their own, so one that is sent twice is handled once.
    """

    def __init__(self, handled: FindHandled, group: str, id_of: IdOf | None, counts: Counts) -> None:
        self._handled = handled
        self._group = group
        self._id_of = id_of
        self._counts = counts
        self._ids: dict[tuple[int, Pointer], str] = {}
        self._under_way: set[str] = set()
        self._waiting: dict[str, collections.deque[tuple[AssignedPartition, Batch, int]]] = {}

    def admit(self, assigned: AssignedPartition, batch: Batch, spans: Spans) -> Spans:
        """The records to handle now. The others are ignored, or wait for one with the same id."""
        ids = self._ids_of(batch, spans)
        if not ids:
            return spans
        wanted = {id for id in ids.values() if id is not None}
        known = self._handled(wanted) if wanted else frozenset()
        left: Spans = []
        for low, high in spans:
            for index in range(low, high):
                if index in ids and not self._admit_one(assigned, batch, index, ids[index], known):
                    continue
                if left and left[-1][1] == index:
                    left[-1] = (left[-1][0], index + 1)
                else:
                    left.append((index, index + 1))
        return left

    def _admit_one(
        self, assigned: AssignedPartition, batch: Batch, index: int, id: str | None, known: frozenset[str]
    ) -> bool:
        first, end = batch.edge(index), batch.edge(index + 1)
        if id is None:
            assigned.tracker.ignored(first, end, "sent again for another group")
        elif id in known:
            assigned.tracker.ignored(first, end, f"handled before: {id}")
        elif id in self._under_way:
            self._waiting.setdefault(id, collections.deque()).append((assigned, batch, index))
            return False
        else:
            self._under_way.add(id)
            self._ids[assigned.partition, batch.pointer(index)] = id
            return True
        self._counts.ignored += 1
        assigned.in_flight -= 1
        return False

    def _ids_of(self, batch: Batch, spans: Spans) -> dict[int, str | None]:
        """The ids of records that have one; None for records that are meant for another group."""
        found: dict[int, str | None] = {}
        if self._id_of is not None:
            for low, high in spans:
                for index in range(low, high):
                    id = self._id_of(batch[index])
                    if id is not None:
                        found[index] = id
        for index in batch.with_headers():
            redrive = redrive_of(batch[index])
            if redrive is not None:
                found[index] = redrive.id if redrive.is_for(self._group) else None
        return found

    def remember(self, assigned: AssignedPartition, batch: Batch, low: int, high: int) -> None:
        """Add the ids of these records to the tracker's next change. Thread-safe."""
        if not self._ids:
            return
        for index in range(low, high):
            id = self._ids.get((assigned.partition, batch.pointer(index)))
            if id is not None:
                assigned.tracker.remember(id)

    def finished(
        self, assigned: AssignedPartition, batch: Batch, low: int, high: int, *, succeeded: bool
    ) -> list[tuple[AssignedPartition, Batch, int]]:
        """Forget the ids of finished records. Returns the records that waited for them and can be handled now."""
        freed: list[tuple[AssignedPartition, Batch, int]] = []
        if not self._ids:
            return freed
        for index in range(low, high):
            id = self._ids.pop((assigned.partition, batch.pointer(index)), None)
            if id is None:
                continue
            if succeeded:
                assigned.tracker.remember(id)
            self._under_way.discard(id)
            freed.extend(self._free(id, succeeded))
        return freed

    def waiting(self, assigned: AssignedPartition) -> int:
        """How many records of a partition wait for another with the same id."""
        return sum(entry[0] is assigned for entries in self._waiting.values() for entry in entries)

    def _free(self, id: str, succeeded: bool) -> Sequence[tuple[AssignedPartition, Batch, int]]:
        waiting = self._waiting.pop(id, None)
        if waiting is None:
            return ()
        if not succeeded:  # it was given up: the next one is tried
            assigned, batch, index = waiting.popleft()
            if waiting:
                self._waiting[id] = waiting
            self._under_way.add(id)
            self._ids[assigned.partition, batch.pointer(index)] = id
            return ((assigned, batch, index),)
        for assigned, batch, index in waiting:
            if not assigned.closed:
                assigned.tracker.ignored(batch.edge(index), batch.edge(index + 1), f"handled before: {id}")
                self._counts.ignored += 1
                assigned.in_flight -= 1
        return ()

    def forget(self, assigned: AssignedPartition) -> list[tuple[AssignedPartition, Batch, int]]:
        """Drop a partition. Returns records of other partitions that waited for one of it."""
        for id in list(self._waiting):
            kept = collections.deque(entry for entry in self._waiting[id] if entry[0] is not assigned)
            if kept:
                self._waiting[id] = kept
            else:
                del self._waiting[id]
        freed: list[tuple[AssignedPartition, Batch, int]] = []
        for place in [place for place in self._ids if place[0] == assigned.partition]:
            id = self._ids.pop(place)
            self._under_way.discard(id)
            freed.extend(self._free(id, succeeded=False))
        return freed
