"""Process what workers report: update the tracker, retry, or give up."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock
from penstock.consuming.counts import Counts
from penstock.consuming.loop.assigned_partition import AssignedPartition, Uncommitted
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.loop.failures import FailureHandler
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.stages import StageError, Stages
from penstock.consuming.workers.lanes import Lane, Lanes, Span, Task
from penstock.consuming.workers.runners import Report
from penstock.errors import FencedError, OutcomeUnknownError, RegistryUnavailableError, StoreUnavailableError
from penstock.model import Batch, Guarantee, Ordering

_STORE_AGAIN_S: Final = 0.5
_NOT_THE_RECORD: Final = (StoreUnavailableError, RegistryUnavailableError)
"""The database of the effects or the schema registry is unavailable. This does not count as an attempt."""


class Reports:
    """The queue of reports. Workers append to `reports` and `trees`; the loop calls everything else."""

    def __init__(
        self,
        options: ConsumerOptions,
        lanes: Lanes,
        failures: FailureHandler,
        dedup: Deduplication,
        stages: Stages | None,
        clock: Clock,
        counts: Counts,
        *,
        outputs_in_transaction: bool,
    ) -> None:
        self._options = options
        self._lanes = lanes
        self._failures = failures
        self._dedup = dedup
        self._stages = stages
        self._clock = clock
        self._counts = counts
        self._outputs_in_transaction = outputs_in_transaction
        self._has_keys = options.order is Ordering.KEY
        self.reports: collections.deque[Report] = collections.deque()
        self.trees: collections.deque[tuple[Task, int, BaseException | None]] = collections.deque()
        """Records whose tasks have all ended, or one of whose tasks has failed."""
        self.awaiting_save: list[tuple[Task, Sequence[Span]]] = []
        """Tasks whose lanes wait until they are saved, with the records that come first in the lane then."""

    @property
    def is_pending(self) -> bool:
        return bool(self.reports or self.trees)

    def process(self) -> list[tuple[AssignedPartition, FencedError | OutcomeUnknownError]]:
        """Process all reports. Returns the partitions that were fenced or whose last commit has an unknown outcome."""
        lost: list[tuple[AssignedPartition, FencedError | OutcomeUnknownError]] = []
        while self.trees:
            self._process_tree(*self.trees.popleft())
        while self.reports:
            report = self.reports.popleft()
            assigned = report.task.assigned
            if report.is_broken:
                assert report.error is not None
                raise report.error
            if report.task.laps is not None:
                self._counts.handling.add_laps(report.task.laps)
            if assigned.closed or report.task.abandoned:
                self._lanes.saved(report.task)
                continue
            if report.is_plain and not self._lanes.saves_each_task:
                self._merge_following(report)
            with assigned.tracker.lock:
                self._process_report(report)
            if isinstance(report.error, FencedError | OutcomeUnknownError):
                lost.append((assigned, report.error))
        for assigned, batch, index in self._failures.take_redelivered():
            assigned.in_flight -= 1
            self.put_records(self._dedup.finished(assigned, batch, index, index + 1, succeeded=False))
        for pending in self._failures.put():
            assigned, batch, index = pending.assigned, pending.batch, pending.index
            with assigned.tracker.lock:
                if self._options.guarantee is not Guarantee.AT_MOST_ONCE:
                    first, end = batch.edge(index), batch.edge(index + 1)
                    assigned.tracker.gave_up(batch.pointer(index), first, end, pending.letter.error)
                assigned.in_flight -= 1
                self.put_records(self._dedup.finished(assigned, batch, index, index + 1, succeeded=False))
            self._acknowledge_task(batch, index, StageError(pending.letter.error))
            self._lanes.release(pending.lane, pending.rest)
        return lost

    def put_records(self, freed: Sequence[tuple[AssignedPartition, Batch, int]]) -> None:
        """Hand single records to the lanes."""
        for assigned, batch, index in freed:
            if not assigned.closed:
                self._lanes.put(assigned, batch, [(index, index + 1)], batch.keys() if self._has_keys else ())

    def _merge_following(self, report: Report) -> None:
        """Extend a report by those after it that continue it: records without an order have a report each."""
        while self.reports:
            following = self.reports[0]
            task = following.task
            if task.batch is not report.task.batch or task.low != report.done:
                return
            if task.abandoned or not following.is_plain:
                return
            report.done = following.done
            report.calls += following.calls
            if task.laps is not None:
                self._counts.handling.add_laps(task.laps)
            self.reports.popleft()

    def _process_report(self, report: Report) -> None:
        task, assigned = report.task, report.task.assigned
        assigned.tracker.processed += report.calls
        if report.done > task.low:
            self._failures.succeeded()
            assigned.progressed_s = self._clock.monotonic_s()
            if report.open:
                assigned.open_trees += len(report.open)
                assigned.tracker.keep(report.state)
            else:
                self.put_records(self._dedup.finished(assigned, task.batch, task.low, report.done, succeeded=True))
                self._finish(report)
        rest = (task.batch, report.done, task.high)
        if isinstance(report.error, FencedError | OutcomeUnknownError):
            return
        if isinstance(report.error, _NOT_THE_RECORD):
            self._lanes.release(task.lane, [rest], _STORE_AGAIN_S)
        elif report.error is not None:
            self._failures.failed(report)
        elif self._lanes.saves_each_task:
            self.awaiting_save.append((task, [rest] if report.done < task.high else ()))

    def _finish(self, report: Report) -> None:
        task, assigned = report.task, report.task.assigned
        count = report.done - task.low
        self._counts.succeeded += count
        if self._outputs_in_transaction:
            assigned.uncommitted.append(
                Uncommitted(task.batch, task.low, report.done, task.begun_ms, tuple(report.outputs), report.state)
            )
            assigned.uncommitted_count += count
            return  # in flight until their transaction is committed
        assigned.in_flight -= count
        if report.is_saved:
            return
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            assigned.tracker.delivered += count
        else:
            assigned.finish(task.batch, task.low, report.done, task.begun_ms)
        assigned.tracker.keep(report.state)
        if self._stages is not None:
            for index in task.batch.with_headers():
                if task.low <= index < report.done:
                    self._acknowledge_task(task.batch, index, None)

    def _process_tree(self, task: Task, index: int, error: BaseException | None) -> None:
        assigned = task.assigned
        assigned.open_trees -= 1
        if assigned.closed:
            return
        with assigned.tracker.lock:
            if error is not None:
                # Its lane has moved on, so the record is retried in a lane of its own.
                again = Task(Lane(assigned, None), task.batch, index, index + 1, self._clock)
                self._failures.failed(Report(again, index, error, str(error)))
                return
            self.put_records(self._dedup.finished(assigned, task.batch, index, index + 1, succeeded=True))
            assigned.finish(task.batch, index, index + 1, task.begun_ms)
            self._counts.succeeded += 1
            assigned.in_flight -= 1
            assigned.progressed_s = self._clock.monotonic_s()
        self._acknowledge_task(task.batch, index, None)

    def _acknowledge_task(self, batch: Batch, index: int, error: BaseException | None) -> None:
        """If the record is itself a task of a tree, tell the tree's owner that it ended."""
        if self._stages is not None:
            self._stages.finished(batch[index], error)
