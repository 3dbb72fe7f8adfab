"""Exactly once, by the effect and the checkpoint in one SQL transaction."""

from __future__ import annotations

import contextlib
from typing import Final

from penstock.abc import Clock, StoreTransaction, TransactionalStore
from penstock.consuming.context import Context, TransactionOfRecord
from penstock.consuming.dedup import Deduplication
from penstock.consuming.handlers import Handler, Wants
from penstock.consuming.lanes import Task
from penstock.consuming.runners import Caller, Gather, Report, decoder_of, failed, undo
from penstock.consuming.share import Share
from penstock.errors import FencedError, StoreUnavailableError

LONGEST_S: Final = 0.25
"""A transaction is committed after so long, however many records there are left: others wait for the database."""


class _MustBeCareful(Exception):
    """A handler went on after an error inside its transaction: each record needs a savepoint of its own."""


class TransactionRunner:
    """Handles the records of a task in one transaction, and saves the checkpoint in it.

    When one fails, all of it is rolled back and those before it are done again, without it: so many records share one
    commit, and none of them pays for a savepoint.

    Locks are taken in one order only: first the database's, by beginning the transaction, then the tracker's.
    """

    def __init__(
        self,
        handler: Handler,
        gather: Gather,
        caller: Caller,
        store: TransactionalStore,
        dedup: Deduplication,
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._decode = decoder_of(handler)
        self._gather = gather
        self._caller = caller
        self._store = store
        self._dedup = dedup
        self._clock = clock

    def run(self, task: Task) -> Report:
        run = self._run_batch if self._handler.batch is not None else self._run_each
        report = Report(task, task.low)
        high, careful, failure, calls = task.high, False, None, 0
        while True:
            try:
                run(report, high, careful)
                break
            except _MustBeCareful:
                careful = True
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

    def close(self) -> None:
        pass

    def _run_each(self, report: Report, high: int, careful: bool) -> None:
        task = report.task
        limit_s = self._clock.monotonic_s() + LONGEST_S
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, careful)
            call_for = self._caller.calls(task, part)
            function, now_s = self._handler.function, self._clock.monotonic_s
            for index in range(task.low, high):
                arguments, context = call_for(index)
                report.calls += 1
                result = function(*arguments)
                if part.broken:
                    if not careful:
                        raise _MustBeCareful
                    part.broken = False
                if result is not None or (context is not None and context.was_used):
                    self._gather.finish(report, task.share, context, result)
                report.done = index + 1
                if now_s() >= limit_s:
                    break
            self._commit(report, transaction, stack)

    def _run_batch(self, report: Report, high: int, careful: bool) -> None:
        task = report.task
        values = list(task.batch.values()[task.low : high])
        if self._decode is not None:
            values = [self._decode(value) for value in values]
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, careful)
            context = self._batch_context(task, part)
            report.calls += len(values)
            result = self._handler.function(*([values] if context is None else [values, context]))
            if part.broken and not careful:
                raise _MustBeCareful
            self._gather.finish(report, task.share, context, result)
            report.done = high
            self._commit(report, transaction, stack)

    def _batch_context(self, task: Task, part: TransactionOfRecord) -> Context | None:
        if Wants.CONTEXT not in self._handler.wants:
            return None
        return self._caller.context(task, task.low, part)

    def _commit(self, report: Report, transaction: StoreTransaction, stack: contextlib.ExitStack) -> None:
        task = report.task
        share, tracker = task.share, task.share.tracker
        with tracker.lock, tracker.undone_on_error():
            if share.closed or task.abandoned:
                raise FencedError(f"{share.key} was given up in the meantime")
            share.finish(task.batch, task.low, report.done, task.begun_ms)
            tracker.processed += report.calls
            tracker.keep(report.state)
            self._dedup.remember(share, task.batch, task.low, report.done)
            transaction.save(share.lease, share.key, tracker.change())
            stack.close()  # commits
            tracker.saved()
        report.is_saved = True
        report.calls = 0  # counted


def save_in_transaction(store: TransactionalStore, share: Share, *, last: bool) -> None:
    """Save what the tracker knows, in the same order of locks as those who commit effects."""
    tracker = share.tracker
    with contextlib.ExitStack() as stack:
        transaction = stack.enter_context(store.transaction())
        with tracker.lock:
            transaction.save(share.lease, share.key, tracker.change(last=last))
            stack.close()
            tracker.saved()
