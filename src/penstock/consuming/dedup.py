"""Deduplication: records of one idempotency key are handled once, within a window."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from penstock.abc import CheckpointStore
from penstock.consuming.counts import Counts
from penstock.consuming.dead_letters.headers import redrive_of
from penstock.consuming.options import IdOf
from penstock.consuming.share import Share
from penstock.model import Batch, Pointer

Spans = list[tuple[int, int]]


class Deduplication:
    """Knows the ids of what is under way, and asks the store about those of what comes.

    Dead letters that are sent again carry an id of their own, so that one that is sent twice is handled once.
    """

    def __init__(self, store: CheckpointStore, group: str, topic: str, id_of: IdOf | None, counts: Counts) -> None:
        self._store = store
        self._group = group
        self._topic = topic
        self._id_of = id_of
        self._counts = counts
        self._ids: dict[tuple[int, Pointer], str] = {}
        self._under_way: set[str] = set()
        self._waiting: dict[str, collections.deque[tuple[Share, Batch, int]]] = {}

    def admit(self, share: Share, batch: Batch, spans: Spans) -> Spans:
        """Which records to handle now. The others are ignored, or wait for another of the same id."""
        ids = self._ids_of(batch, spans)
        if not ids:
            return spans
        wanted = {id for id in ids.values() if id is not None}
        known = self._store.handled(self._group, self._topic, wanted) if wanted else frozenset()
        left: Spans = []
        for low, high in spans:
            for index in range(low, high):
                if index in ids and not self._admit_one(share, batch, index, ids[index], known):
                    continue
                if left and left[-1][1] == index:
                    left[-1] = (left[-1][0], index + 1)
                else:
                    left.append((index, index + 1))
        return left

    def _admit_one(self, share: Share, batch: Batch, index: int, id: str | None, known: frozenset[str]) -> bool:
        first, end = batch.edge(index), batch.edge(index + 1)
        if id is None:
            share.tracker.ignored(first, end, "sent again for another group")
        elif id in known:
            share.tracker.ignored(first, end, f"handled before: {id}")
        elif id in self._under_way:
            self._waiting.setdefault(id, collections.deque()).append((share, batch, index))
            return False
        else:
            self._under_way.add(id)
            self._ids[share.partition, batch.pointer(index)] = id
            return True
        self._counts.ignored += 1
        share.in_flight -= 1
        return False

    def _ids_of(self, batch: Batch, spans: Spans) -> dict[int, str | None]:
        """The ids of records that have one; None for those that are meant for another group."""
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

    def remember(self, share: Share, batch: Batch, low: int, high: int) -> None:
        """Have the tracker remember the ids of these records, with what it saves next. From any thread."""
        if not self._ids:
            return
        for index in range(low, high):
            id = self._ids.get((share.partition, batch.pointer(index)))
            if id is not None:
                share.tracker.remember(id)

    def finished(
        self, share: Share, batch: Batch, low: int, high: int, *, succeeded: bool
    ) -> list[tuple[Share, Batch, int]]:
        """These records are finished. Gives those that waited for one of them, and are to be handled now."""
        freed: list[tuple[Share, Batch, int]] = []
        if not self._ids:
            return freed
        for index in range(low, high):
            id = self._ids.pop((share.partition, batch.pointer(index)), None)
            if id is None:
                continue
            if succeeded:
                share.tracker.remember(id)
            self._under_way.discard(id)
            freed.extend(self._free(id, succeeded))
        return freed

    def waiting(self, share: Share) -> int:
        """How many records of a partition wait for another of the same id."""
        return sum(entry[0] is share for entries in self._waiting.values() for entry in entries)

    def _free(self, id: str, succeeded: bool) -> Sequence[tuple[Share, Batch, int]]:
        waiting = self._waiting.pop(id, None)
        if waiting is None:
            return ()
        if not succeeded:  # it was given up: the next one has its chance
            share, batch, index = waiting.popleft()
            if waiting:
                self._waiting[id] = waiting
            self._under_way.add(id)
            self._ids[share.partition, batch.pointer(index)] = id
            return ((share, batch, index),)
        for share, batch, index in waiting:
            if not share.closed:
                share.tracker.ignored(batch.edge(index), batch.edge(index + 1), f"handled before: {id}")
                self._counts.ignored += 1
                share.in_flight -= 1
        return ()

    def forget(self, share: Share) -> list[tuple[Share, Batch, int]]:
        """The partition is no longer ours. Gives those records of others that waited for one of its own."""
        for id in list(self._waiting):
            kept = collections.deque(entry for entry in self._waiting[id] if entry[0] is not share)
            if kept:
                self._waiting[id] = kept
            else:
                del self._waiting[id]
        freed: list[tuple[Share, Batch, int]] = []
        for place in [place for place in self._ids if place[0] == share.partition]:
            id = self._ids.pop(place)
            self._under_way.discard(id)
            freed.extend(self._free(id, succeeded=False))
        return freed
