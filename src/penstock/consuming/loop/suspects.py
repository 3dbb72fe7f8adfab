"""Hand out records that may have killed earlier owners, so that the one that kills is found.

An owner that dies cannot tell which of the records in its hands killed it. So the next one hands them out in groups,
and saves before each group that it is in hand. If it dies, too, its successor handles the records of that group one at
a time, and saves each attempt before it makes it. A group has about as many records as there are groups: of 1,000
suspects, 31 in each of 33 groups. That takes no more deaths than handling all of them one at a time from the beginning;
halving the suspects at each death would take ten more, and a supervisor gives up a program that dies so often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.loop.failures import FailureHandler
from penstock.consuming.loop.reports import Reports
from penstock.model import Batch

SUSPICIOUS_RESTARTS: Final = 2
"""After this many owners died without progress, hand out what they had in flight in groups."""
DEADLY_ATTEMPTS: Final = 5
"""A record that killed this many processes becomes a dead letter."""


class SuspectDispatcher:
    """Hands out the suspects of partitions to the lanes. Called by the loop."""

    def __init__(
        self,
        reports: Reports,
        dedup: Deduplication,
        failures: FailureHandler,
        save: Callable[[AssignedPartition], None],
    ) -> None:
        self._reports = reports
        self._dedup = dedup
        self._failures = failures
        self._save = save

    def hand_out(self, assigned: AssignedPartition) -> None:
        """Hand out the next group if the one before is finished. Outputs of that one are committed with the mark."""
        while assigned.suspects and self._is_free(assigned):
            group = self._next_group(assigned)
            if not group:
                self._reports.put_records([(assigned, *each) for each in assigned.suspects])
                assigned.suspects.clear()
                return
            pointers = [batch.pointer(index) for batch, index in group]
            deaths = 0
            with assigned.tracker.lock:
                if len(group) == 1:
                    deaths = assigned.tracker.begin_suspect(pointers[0])
                else:
                    assigned.tracker.begin_suspects(pointers)
            self._save(assigned)
            if assigned.closed:
                return
            if deaths > DEADLY_ATTEMPTS:
                self._failures.give_up_deadly(assigned, *group[0])
                return
            self._reports.put_records([(assigned, *each) for each in group])

    def _is_free(self, assigned: AssignedPartition) -> bool:
        waiting = len(assigned.suspects) + assigned.delayed + self._dedup.waiting(assigned)
        return assigned.in_flight - assigned.uncommitted_count == waiting

    def _next_group(self, assigned: AssignedPartition) -> Sequence[tuple[Batch, int]]:
        """Take the first suspects: one if an owner died with it in hand; none if nothing that is left is suspected."""
        suspects = assigned.suspects
        assigned.suspects_at_once = max(assigned.suspects_at_once, math.isqrt(len(suspects)))
        group: list[tuple[Batch, int]] = []
        while suspects and len(group) < assigned.suspects_at_once:
            batch, index = suspects[0]
            pointer = batch.pointer(index)
            if pointer >= assigned.suspects_end:
                break
            was_in_hand = assigned.tracker.was_in_hand(pointer)
            if was_in_hand and group:
                break
            group.append(suspects.popleft())
            if was_in_hand:
                break
        return group
