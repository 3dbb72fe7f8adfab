"""Exactly once: the effect and the checkpoint in one SQL transaction."""

from __future__ import annotations

import contextlib
import logging
from enum import Enum, auto
from typing import Final

from penstock.abc import Clock, PipelinedTransaction, StoreTransaction, TransactionalStore
from penstock.consuming.context import Context, TransactionOfRecord
from penstock.consuming.handlers import Handler, HandlerArgument
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
MOST_AHEAD: Final = 128
"""Handler calls whose statements are sent ahead before their results are awaited: results are kept in memory."""
MOST_SKIPPED: Final = 1024
"""Groups that are handled in a slower way, before the fast one is tried again."""

logger = logging.getLogger(__name__)


class _Statements(Enum):
    """How the handlers of a group share its transaction."""

    TOGETHER = auto()
    """Without savepoints; statements are sent ahead if the store can."""
    WAITING = auto()
    """The same, but each statement is waited for."""
    SAVEPOINTS = auto()
    """Each can fail alone, and each statement is waited for."""


class _NeedsSavepoints(Exception):
    """It is unknown which handler failed, or one continued after an error: each record needs a savepoint."""


class _CommitError(Exception):
    """The commit failed, as with a violated deferred constraint: it is unknown which record is at fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class TransactionRunner(Runner):
    """Handles the records of a task in one transaction, which also saves the checkpoint.

    So many records share one commit, none needs a savepoint, and where the store can, their statements do not wait for
    each other's results. When a record fails, everything is rolled back and the records are handled again: those
    before it, or, where it is not certain which one failed, each with a savepoint and one statement at a time.

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
        self._skipped = 0
        """How many groups the last decision against TOGETHER concerned."""
        self._left_to_skip = 0
        self._instead = _Statements.WAITING

    def run(self, task: Task) -> Report:
        is_batch = self._handler.batch is not None
        run = self._run_batch if is_batch else self._run_each
        report = Report(task, task.low)
        high, failure, calls = task.high, None, 0
        way = first_way = self._first_way(task)
        repeated: _NeedsSavepoints | None = None
        while True:
            try:
                own_failure = run(report, high, way)
                if own_failure is not None or report.done < high:
                    failure = own_failure  # if time was up, it did not get as far as the record that failed before
                break
            except _NeedsSavepoints as error:
                way, repeated = _Statements.SAVEPOINTS, error
            except (FencedError, StoreUnavailableError) as error:
                undo(report)
                report.is_saved = False
                return failed(report, error)
            except _CommitError as error:
                failure, high = error.error, task.low
                count = report.done - task.low
                if is_batch:
                    report.is_whole = count > 1
                elif count > 1:
                    failure, high = None, task.low + count // 2
            except Exception as error:
                failure, high = error, report.done
                if is_batch:
                    high = task.low
                    report.is_whole = report.calls > 1
            calls += report.calls
            undo(report)
            report.calls = 0
            if high == task.low:
                break
        report.calls += calls
        if first_way is _Statements.TOGETHER:
            self._learn(repeated if failure is None else None)
        return report if failure is None else failed(report, failure)

    def _first_way(self, task: Task) -> _Statements:
        if self._left_to_skip:
            self._left_to_skip -= 1
            return self._instead
        # With a single record there is nothing to gain, and a failure is certain to be its own.
        return _Statements.TOGETHER if task.high - task.low > 1 else _Statements.WAITING

    def _learn(self, repeated: _NeedsSavepoints | None) -> None:
        """Handle the next groups in another way, if all records of this one succeeded, but not together.

        Some statements cannot be sent ahead, such as several in one text; some handlers catch errors of the database.
        """
        if repeated is None:
            self._skipped = 0
            return
        cause = repeated.__cause__
        self._instead = _Statements.SAVEPOINTS if cause is None else _Statements.WAITING
        if cause is not None and not self._skipped:
            name = self._handler.name
            logger.info("%s: statements failed when they were sent ahead, but not one at a time: %s", name, cause)
        self._skipped = self._left_to_skip = min(2 * self._skipped + 1, MOST_SKIPPED)

    def _run_each(self, report: Report, high: int, way: _Statements) -> Exception | None:
        """Return the failure of the record after the last that is done, where all before it are committed."""
        failure = None
        limit_s = self._clock.monotonic_s() + LONGEST_TRANSACTION_S
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, way is _Statements.SAVEPOINTS)
            pipeline = _pipeline(transaction) if way is _Statements.TOGETHER else None
            if pipeline is not None:
                self._call_ahead(report, high, part, pipeline, limit_s)
            else:
                failure = self._call_each(report, high, part, way, limit_s)
            self._commit(report, transaction, stack)
        return failure

    def _call_ahead(
        self, report: Report, high: int, part: TransactionOfRecord, pipeline: PipelinedTransaction, limit_s: float
    ) -> None:
        """Call handlers without waiting for their statements. After any error, it is unknown whose error it was."""
        task = report.task
        call_for = self._call_builder.calls(task, part)
        function, now_s, collector = self._handler.function, self._clock.monotonic_s, self._collector
        ahead, catch_up_at = 1, task.low + 1
        try:
            for index in range(task.low, high):
                arguments, context = call_for(index)
                report.calls += 1
                result = function(*arguments)
                if part.broken:
                    raise _NeedsSavepoints
                if result is not None or (context is not None and context.was_used):
                    collector.finish(report, task.assigned, context, result)
                report.done = index + 1
                if report.done == catch_up_at:
                    # Twice as many each time, so that slow statements do not exceed the time by more than they took.
                    pipeline.catch_up()
                    pipeline.send_ahead()
                    ahead = min(2 * ahead, MOST_AHEAD)
                    catch_up_at += ahead
                if now_s() >= limit_s:
                    break
            pipeline.catch_up()
        except (_NeedsSavepoints, FencedError, StoreUnavailableError):
            raise
        except Exception as error:
            raise _NeedsSavepoints from error

    def _call_each(
        self, report: Report, high: int, part: TransactionOfRecord, way: _Statements, limit_s: float
    ) -> Exception | None:
        task = report.task
        call_for = self._call_builder.calls(task, part)
        function, now_s = self._handler.function, self._clock.monotonic_s
        for index in range(task.low, high):
            has_returned = False
            try:
                arguments, context = call_for(index)
                report.calls += 1
                result = function(*arguments)
                has_returned = True
                if part.broken:
                    if way is not _Statements.SAVEPOINTS:
                        raise _NeedsSavepoints
                    part.broken = False
                if result is not None or (context is not None and context.was_used):
                    self._collector.finish(report, task.assigned, context, result)
                part.end_record()
            except (_NeedsSavepoints, FencedError, StoreUnavailableError):
                raise
            except Exception as error:
                if way is not _Statements.SAVEPOINTS or index == task.low or has_returned:
                    raise  # everything is undone, and the records before this one are handled again
                part.end_record(error)
                return error
            report.done = index + 1
            if now_s() >= limit_s:
                break
        return None

    def _run_batch(self, report: Report, high: int, way: _Statements) -> None:
        task = report.task
        values = decode_values(self._decode, task.batch.values()[task.low : high])
        high = task.low + len(values)
        with contextlib.ExitStack() as stack:
            transaction = stack.enter_context(self._store.transaction())
            part = TransactionOfRecord(transaction, way is _Statements.SAVEPOINTS)
            context = self._batch_context(task, part)
            report.calls += len(values)
            result = self._handler.function(*([values] if context is None else [values, context]))
            if part.broken and way is not _Statements.SAVEPOINTS:
                raise _NeedsSavepoints
            self._collector.finish(report, task.assigned, context, result)
            part.end_record()
            report.done = high
            self._commit(report, transaction, stack)

    def _batch_context(self, task: Task, part: TransactionOfRecord) -> Context | None:
        if HandlerArgument.CONTEXT not in self._handler.wants:
            return None
        return self._call_builder.context(task, task.low, part)

    def _commit(self, report: Report, transaction: StoreTransaction, stack: contextlib.ExitStack) -> None:
        try:
            self._save_and_commit(report, transaction, stack)
        except (FencedError, StoreUnavailableError):
            raise
        except Exception as error:
            raise _CommitError(error) from error
        report.is_saved = True
        report.calls = 0  # counted

    def _save_and_commit(self, report: Report, transaction: StoreTransaction, stack: contextlib.ExitStack) -> None:
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


def _pipeline(transaction: StoreTransaction) -> PipelinedTransaction | None:
    if isinstance(transaction, PipelinedTransaction) and transaction.send_ahead():
        return transaction
    return None
