"""Records sent with a delay: held until they are due, together with the records that must not overtake them.

They are read like all others and stay unfinished in the checkpoint, so a restart reads them again; a header says when
they are due. Before that, they neither reach a worker nor are they committed in advance.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Sequence

from penstock.abc import Clock
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.model import Batch, Ordering, due_ms

Spans = list[tuple[int, int]]
_Lane = tuple[int, object]
"""An AssignedPartition, by its id, and what is kept in order within it: all of it (None), a key, or one record."""


class Delays:
    """Records that are not due. Owned by the loop; `AssignedPartition.delayed` counts them."""

    def __init__(self, order: Ordering, clock: Clock) -> None:
        self._order = order
        self._clock = clock
        self._held: dict[_Lane, collections.deque[tuple[AssignedPartition, Batch, int, int]]] = {}
        """By lane, in order: the records, and when each is due. The first one is not due yet."""
        self._due: list[tuple[int, int, _Lane]] = []
        self._numbers = itertools.count()

    def admit(self, assigned: AssignedPartition, batch: Batch, spans: Spans) -> Spans:
        """The records that may be handled now. The others are held."""
        due = {index: at_ms for index in batch.with_headers() if (at_ms := due_ms(batch[index].headers)) is not None}
        if not due and not assigned.delayed:
            return spans
        now_ms = self._clock.wall_ms()
        keys = batch.keys() if self._order is Ordering.KEY else ()
        left: Spans = []
        for index in itertools.chain.from_iterable(range(low, high) for low, high in spans):
            lane = self._lane(assigned, keys, index)
            at_ms = due.get(index, 0)
            if at_ms > now_ms or lane in self._held:
                self._hold(lane, assigned, batch, index, at_ms)
            elif left and left[-1][1] == index:
                left[-1] = (left[-1][0], index + 1)
            else:
                left.append((index, index + 1))
        return left

    def take_due(self) -> list[tuple[AssignedPartition, Batch, int]]:
        """Remove and return the records that are due now, in the order of their lanes."""
        found: list[tuple[AssignedPartition, Batch, int]] = []
        now_ms = self._clock.wall_ms()
        while self._due and self._due[0][0] <= now_ms:
            lane = heapq.heappop(self._due)[2]
            held = self._held.get(lane)
            if held is None or held[0][3] > now_ms:  # the lane was dropped, and perhaps filled again since
                continue
            while held and held[0][3] <= now_ms:
                assigned, batch, index, _ = held.popleft()
                assigned.delayed -= 1
                found.append((assigned, batch, index))
            if held:
                heapq.heappush(self._due, (held[0][3], next(self._numbers), lane))
            else:
                del self._held[lane]
        return found

    def next_s(self) -> float | None:
        """Seconds until the next record is due; None when nothing is held."""
        return max(0.0, (self._due[0][0] - self._clock.wall_ms()) / 1000) if self._due else None

    def forget(self, assigned: AssignedPartition) -> int:
        """Drop the held records of a partition. Returns how many."""
        if not assigned.delayed:
            return 0
        for lane in [lane for lane in self._held if lane[0] == id(assigned)]:
            del self._held[lane]
        count, assigned.delayed = assigned.delayed, 0
        return count

    def _lane(self, assigned: AssignedPartition, keys: Sequence[bytes | None], index: int) -> _Lane:
        if self._order is Ordering.PARTITION:
            return id(assigned), None
        key = keys[index] if self._order is Ordering.KEY else None
        return id(assigned), next(self._numbers) if key is None else key

    def _hold(self, lane: _Lane, assigned: AssignedPartition, batch: Batch, index: int, at_ms: int) -> None:
        held = self._held.get(lane)
        if held is None:
            held = self._held[lane] = collections.deque()
            heapq.heappush(self._due, (at_ms, next(self._numbers), lane))
        held.append((assigned, batch, index, at_ms))
        assigned.delayed += 1
