"""Exactly once: the effect and the checkpoint in one SQL transaction."""

from __future__ import annotations

import contextlib
from typing import Final

from penstock.abc import Clock, StoreTransaction, TransactionalStore
from penstock.consuming.context import Context, TransactionOfRecord
from penstock.consuming.handlers import Handler, Wants
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.workers.lanes import Task
from penstock.consuming.workers.runners import (
    CallBuilder,
    OutputCollector,
    Report,
    Runner,
    decode_values,
    decoder_of,
    failed,
    undo,
)
from penstock.errors import FencedError, StoreUnavailableError

LONGEST_TRANSACTION_S: Final = 0.25
"""Commit after this long, even if records are left: other writers wait for the database."""


class _NeedsSavepoints(Exception):
    """A handler continued after an error inside its transaction: each record needs a savepoint."""


class TransactionRunner(Runner):
    """Handles the records of a task in one transaction, which also saves the checkpoint.

    When a record fails, everything is rolled back and the records before it are handled again without it. So many
    records share one commit, and none needs a savepoint.

    Lock order: first the database's, by beginning the transaction, then the tracker's.
    """

    def __init__(
        self,
        handler: Handler,
        collector: OutputCollector,
        call_builder: CallBuilder,
        store: TransactionalStore,
        dedup: Deduplication,
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._decode = decoder_of(handler)
        self._collector = collector
        self._call_builder = call_builder
        self._store = store
        self._dedup = dedup
        self._clock = clock

    def run(self, task: Task) -> Report:
        run = self._run_batch if self._handler.batch is not None else self._run_each
        report = Report(task, task.low)
        high, with_savepoints, failure, calls = task.high, False, None, 0
        while True:
            try:
                run(report, high, with_savepoints)
                break
            except _NeedsSavepoints:
                with_savepoints = True
            except (FencedError, StoreUnavailableError) as error:
                undo(report)
                report.is_saved = False
                return failed(report, error)
            except Exception as error:
                failure, high = error, report.done
                if self._handler.batch is not None:
                    high = task.low
                    report.is_whole = report.calls > 1
            calls += report.calls
            undo(report)
            report.calls = 0
            if high == task.low:
                break
        report.calls += calls
        return report if failure is None else failed(report, failure)

    def _run_each(self, report: Report, high: int, with_savepoints: bool) -> None:
        task = report.task
        limit_s = self._clock.monotonic_s() + LONGEST_TRANSACTION_S
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, with_savepoints)
            call_for = self._call_builder.calls(task, part)
            function, now_s = self._handler.function, self._clock.monotonic_s
            for index in range(task.low, high):
                arguments, context = call_for(index)
                report.calls += 1
                result = function(*arguments)
                if part.broken:
                    if not with_savepoints:
                        raise _NeedsSavepoints
                    part.broken = False
                if result is not None or (context is not None and context.was_used):
                    self._collector.finish(report, task.assigned, context, result)
                report.done = index + 1
                if now_s() >= limit_s:
                    break
            self._commit(report, transaction, stack)

    def _run_batch(self, report: Report, high: int, with_savepoints: bool) -> None:
        task = report.task
        values = decode_values(self._decode, task.batch.values()[task.low : high])
        high = task.low + len(values)
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, with_savepoints)
            context = self._batch_context(task, part)
            report.calls += len(values)
            result = self._handler.function(*([values] if context is None else [values, context]))
            if part.broken and not with_savepoints:
                raise _NeedsSavepoints
            self._collector.finish(report, task.assigned, context, result)
            report.done = high
            self._commit(report, transaction, stack)

    def _batch_context(self, task: Task, part: TransactionOfRecord) -> Context | None:
        if Wants.CONTEXT not in self._handler.wants:
            return None
        return self._call_builder.context(task, task.low, part)

    def _commit(self, report: Report, transaction: StoreTransaction, stack: contextlib.ExitStack) -> None:
        task = report.task
        assigned, tracker = task.assigned, task.assigned.tracker
        with tracker.lock, tracker.undone_on_error():
            if assigned.closed or task.abandoned:
                raise FencedError(f"{assigned.key} was released or lost in the meantime")
            assigned.finish(task.batch, task.low, report.done, task.begun_ms)
            tracker.processed += report.calls
            tracker.keep(report.state)
            self._dedup.remember(assigned, task.batch, task.low, report.done)
            transaction.save(assigned.lease, assigned.key, tracker.change())
            stack.close()  # commits
            tracker.saved()
        report.is_saved = True
        report.calls = 0  # counted
