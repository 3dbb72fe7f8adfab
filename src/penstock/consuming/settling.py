"""Settling: what workers report becomes what the tracker knows, what is tried again, and what is given up."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock
from penstock.consuming.counts import Counts
from penstock.consuming.dedup import Deduplication
from penstock.consuming.giving_up import GivingUp
from penstock.consuming.lanes import Lane, Lanes, Task
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.runners import Report
from penstock.consuming.share import Share, Uncommitted
from penstock.consuming.stages import StageError, Stages
from penstock.errors import FencedError, OutcomeUnknownError, RegistryUnavailableError, StoreUnavailableError
from penstock.model import Batch, Guarantee, Order

_STORE_AGAIN_S: Final = 0.5
_NOT_THE_RECORD: Final = (StoreUnavailableError, RegistryUnavailableError)
"""The database of the effects, or the schema registry, is away: no fault of the record, and no attempt."""


class Settling:
    """Workers append to `reports` and `trees`; the loop calls everything else."""

    def __init__(
        self,
        options: ConsumerOptions,
        lanes: Lanes,
        giving_up: GivingUp,
        dedup: Deduplication,
        stages: Stages | None,
        clock: Clock,
        counts: Counts,
        *,
        outputs_in_transaction: bool,
    ) -> None:
        self._options = options
        self._lanes = lanes
        self._giving_up = giving_up
        self._dedup = dedup
        self._stages = stages
        self._clock = clock
        self._counts = counts
        self._outputs_in_transaction = outputs_in_transaction
        self._has_keys = options.order is Order.KEY
        self.reports: collections.deque[Report] = collections.deque()
        self.trees: collections.deque[tuple[Task, int, BaseException | None]] = collections.deque()
        """Records whose tasks have all ended, or of whose tasks one has failed."""

    @property
    def has_news(self) -> bool:
        return bool(self.reports or self.trees)

    def settle(self) -> list[tuple[Share, FencedError | OutcomeUnknownError]]:
        """Take in all that was reported. Gives the shares that cannot go on like this: they are somebody else's, or
        nobody knows whether their last transaction counts."""
        lost: list[tuple[Share, FencedError | OutcomeUnknownError]] = []
        while self.trees:
            self._settle_tree(*self.trees.popleft())
        while self.reports:
            report = self.reports.popleft()
            share = report.task.share
            if report.is_broken:
                assert report.error is not None
                raise report.error
            if report.task.laps is not None:
                self._counts.handling.add_laps(report.task.laps)
            if share.closed or report.task.abandoned:
                continue
            with share.tracker.lock:
                self._settle_one(report)
            if isinstance(report.error, FencedError | OutcomeUnknownError):
                lost.append((share, report.error))
        for given_up in self._giving_up.put():
            share, batch, index = given_up.share, given_up.batch, given_up.index
            with share.tracker.lock:
                if self._options.guarantee is not Guarantee.AT_MOST_ONCE:
                    first, end = batch.edge(index), batch.edge(index + 1)
                    share.tracker.gave_up(batch.pointer(index), first, end, given_up.letter.error)
                share.in_flight -= 1
                self.put_freed(self._dedup.finished(share, batch, index, index + 1, succeeded=False))
            self._tell_keeper(batch, index, StageError(given_up.letter.error))
            self._lanes.release(given_up.lane, given_up.rest)
        return lost

    def put_freed(self, freed: Sequence[tuple[Share, Batch, int]]) -> None:
        """Hand out single records."""
        for share, batch, index in freed:
            if not share.closed:
                self._lanes.put(share, batch, [(index, index + 1)], batch.keys() if self._has_keys else ())

    def _settle_one(self, report: Report) -> None:
        task, share = report.task, report.task.share
        share.tracker.processed += report.calls
        if report.done > task.low:
            self._giving_up.succeeded()
            share.moved_s = self._clock.monotonic_s()
            if report.open:
                share.open_trees += len(report.open)
                share.tracker.keep(report.state)
            else:
                self.put_freed(self._dedup.finished(share, task.batch, task.low, report.done, succeeded=True))
                self._finish(report)
        rest = (task.batch, report.done, task.high)
        if isinstance(report.error, FencedError | OutcomeUnknownError):
            return
        if isinstance(report.error, _NOT_THE_RECORD):
            self._lanes.release(task.lane, [rest], _STORE_AGAIN_S)
        elif report.error is not None:
            self._giving_up.failed(report)
        elif report.done < task.high:
            self._lanes.release(task.lane, [rest])

    def _finish(self, report: Report) -> None:
        task, share = report.task, report.task.share
        count = report.done - task.low
        self._counts.succeeded += count
        if self._outputs_in_transaction:
            share.uncommitted.append(
                Uncommitted(task.batch, task.low, report.done, task.begun_ms, tuple(report.outputs), report.state)
            )
            share.uncommitted_count += count
            return  # they are in flight until their transaction is committed
        share.in_flight -= count
        if report.is_saved:
            return
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            share.tracker.delivered += count
        else:
            share.finish(task.batch, task.low, report.done, task.begun_ms)
        share.tracker.keep(report.state)
        if self._stages is not None:
            for index in task.batch.with_headers():
                if task.low <= index < report.done:
                    self._tell_keeper(task.batch, index, None)

    def _settle_tree(self, task: Task, index: int, error: BaseException | None) -> None:
        share = task.share
        share.open_trees -= 1
        if share.closed:
            return
        with share.tracker.lock:
            if error is not None:
                # Its lane has gone on. The record is tried again in one of its own.
                again = Task(Lane(share, None), task.batch, index, index + 1, self._clock)
                self._giving_up.failed(Report(again, index, error, str(error)))
                return
            self.put_freed(self._dedup.finished(share, task.batch, index, index + 1, succeeded=True))
            share.finish(task.batch, index, index + 1, task.begun_ms)
            self._counts.succeeded += 1
            share.in_flight -= 1
            share.moved_s = self._clock.monotonic_s()
        self._tell_keeper(task.batch, index, None)

    def _tell_keeper(self, batch: Batch, index: int, error: BaseException | None) -> None:
        """If the record is itself a task of another's tree, that one is told."""
        if self._stages is not None:
            self._stages.finished(batch[index], error)
