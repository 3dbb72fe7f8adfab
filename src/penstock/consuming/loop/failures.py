"""Handle failed records: retry them, or turn them into dead letters."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.abc import Clock
from penstock.consuming.counts import Counts
from penstock.consuming.destinations import DestinationUnavailableError
from penstock.consuming.handlers import Handler
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.workers.lanes import Lane, Lanes, Span, Task
from penstock.consuming.workers.runners import Report
from penstock.dead_letters.headers import letter_id_of
from penstock.errors import HandlerError, PenstockError, WorkerDiedError
from penstock.model import Batch, DeadLetter, Failing, Guarantee, Ordering, Record
from penstock.model.circuit_breaker import BreakerState, Circuit
from penstock.model.observing import OBSERVED
from penstock.model.pointer_forms import PointerText, place_text
from penstock.model.retry import NEVER_AGAIN, Retry
from penstock.model.text import count_text

logger = logging.getLogger(__name__)

_PUT_AGAIN_S: Final = 1.0
_LOG_EVERY_S: Final = 10.0
_TRACE_LENGTH: Final = 20_000
_UNTIL_AVAILABLE: Final = Retry(None, max_delay_s=5.0)


class ExhaustedError(PenstockError):
    """A record has no attempts left, and there are no dead letters to put it in."""


@dataclass(frozen=True, slots=True)
class PendingLetter:
    """A record that is about to become a dead letter."""

    letter: DeadLetter
    assigned: AssignedPartition
    lane: Lane
    batch: Batch
    index: int
    rest: tuple[Span, ...]
    """The records after it in the same task."""


class LetterStore(Protocol):
    """The part of `abc.DeadLetters` that a consumer needs."""

    def put(self, letters: Sequence[DeadLetter]) -> None: ...


class FailureHandler:
    """Decides between retry and dead letter. Used only by the consumer's loop."""

    def __init__(
        self,
        handler: Handler,
        group: str,
        options: ConsumerOptions,
        dead_letters: LetterStore | None,
        lanes: Lanes,
        clock: Clock,
        counts: Counts,
        pointer_text: PointerText = str,
    ) -> None:
        self._handler = handler
        self._pointer_text = pointer_text
        self._group = group
        self._options = options
        self._dead_letters = dead_letters
        self._lanes = lanes
        self._clock = clock
        self._counts = counts
        self._random = random.Random(options.seed)
        self.breaker = BreakerState(options.breaker, clock)
        self._pending: list[PendingLetter] = []
        self._redelivered: list[tuple[AssignedPartition, Batch, int]] = []
        self._put_again_s = 0.0
        self._logged_opening = 0
        self._unlogged = 0
        self._log_again_s = 0.0
        self.put_problem = ""
        """Why dead letters cannot be stored at the moment."""

    def failed(self, report: Report) -> None:
        """Handle a failed task: hold its lane and retry, or give its record up."""
        task, error = report.task, report.error
        assert error is not None
        if isinstance(error, HandlerError):
            raise error  # the program is wrong, not the record: every other record would fail, too
        self._counts.failed += 1
        assigned, batch, index = task.assigned, task.batch, report.done
        pointer = batch.pointer(index)
        first, end = batch.edge(index), batch.edge(index + 1)
        text = error_text(error)
        failing = assigned.tracker.failed(pointer, first, end, text, task.begun_ms)
        here: Span = (batch, index, task.high)
        if isinstance(error, DestinationUnavailableError) and self._options.guarantee is not Guarantee.AT_MOST_ONCE:
            self._counts.retried += 1
            self._log_unavailable(text)
            self._retry(task, here, _UNTIL_AVAILABLE.backoff_s(failing.attempts, self._random), text)
            return
        if self.breaker.circuit is Circuit.TRYING:
            if not isinstance(error, NEVER_AGAIN):
                self.breaker.may_give_up(text)
                self._wait_for_breaker(task, here, text)
                return
            self._lanes.allow(1)  # this record says nothing about the handler's health: try another
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            delay_s = None
        else:
            delay_s = self._options.retry.delay_after(failing.attempts, error, self._random)
        if delay_s is not None:
            self._counts.retried += 1
            self._retry(task, here, delay_s, text)
            return
        if report.is_whole:
            self._counts.retried += 1
            # It is unknown which record of the batch failed: retry each alone, and give up only those that fail then.
            alone: list[Span] = [(batch, each, each + 1) for each in range(index, task.high)]
            self._lanes.release(task.lane, alone)
            return
        if not isinstance(error, NEVER_AGAIN) and not self.breaker.may_give_up(text):
            self._wait_for_breaker(task, here, text)
            return
        self._give_up(report, failing, text)

    def give_up_deadly(self, assigned: AssignedPartition, batch: Batch, index: int) -> None:
        """Give up a record that killed too many processes."""
        failing = assigned.tracker.failing(batch.pointer(index))
        assert failing is not None
        error = WorkerDiedError(f"the process died while it handled this record, {failing.attempts - 1} times")
        task = Task(
            assigned.lane if self._options.order is Ordering.PARTITION else Lane(assigned, None),
            batch,
            index,
            index + 1,
            self._clock,
        )
        self._give_up(Report(task, index, error), failing, error_text(error))

    def _wait_for_breaker(self, task: Task, here: Span, text: str) -> None:
        self._counts.retried += 1
        if self._logged_opening != self.breaker.opened:
            self._logged_opening = self.breaker.opened
            logger.error(
                "%s: too many records in a row failed, the last with %s; handling pauses for %.1f s",
                self._handler.name,
                text,
                self.breaker.opens_again_in_s,
            )
        self._retry(task, here, self.breaker.opens_again_in_s, text)

    def _retry(self, task: Task, here: Span, delay_s: float, text: str) -> None:
        """Retry a record after a delay: here, or by its queue, which may deliver it to another consumer."""
        batch, index, _ = here
        if task.assigned.redeliver is None:
            self._lanes.release(task.lane, [here], delay_s)
            return
        task.assigned.redeliver(batch.pointer(index), delay_s, text)
        self._redelivered.append((task.assigned, batch, index))
        self._lanes.release(task.lane)

    def take_redelivered(self) -> list[tuple[AssignedPartition, Batch, int]]:
        """The records that were returned to their queue since the last call."""
        redelivered, self._redelivered = self._redelivered, []
        return redelivered

    def _give_up(self, report: Report, failing: Failing, text: str) -> None:
        task, error, batch, index = report.task, report.error, report.task.batch, report.done
        assigned = task.assigned
        if self._dead_letters is None:
            raise ExhaustedError(
                f"{self._handler.name} could not handle {batch[index].place}: {text}. There are no dead letters for "
                "it, so this consumer stops: fix the handler, or declare dead_letters"
            ) from error
        record = batch[index]
        assert error is not None
        letter = dead_letter_of(self._handler, self._group, record, error, report.trace, failing)
        rest: tuple[Span, ...] = ((batch, index + 1, task.high),) if index + 1 < task.high else ()
        self._pending.append(PendingLetter(letter, assigned, task.lane, batch, index, rest))

    def put(self) -> list[PendingLetter]:
        """Store pending dead letters. Returns those stored now: their records are finished.

        While the dead letters are unavailable, the records stay unfinished and this is retried.
        """
        if not self._pending or self._clock.monotonic_s() < self._put_again_s:
            return []
        assert self._dead_letters is not None
        pending = [each for each in self._pending if not each.assigned.closed]
        try:
            if pending:
                self._dead_letters.put([each.letter for each in pending])
        except PenstockError as error:
            if not self.put_problem:
                logger.error("%s: dead letters cannot be stored; retrying: %s", self._handler.name, error)
            self.put_problem = str(error)
            self._put_again_s = self._clock.monotonic_s() + _PUT_AGAIN_S
            return []
        self.put_problem = ""
        self._pending = []
        self._counts.exhausted += len(pending)
        tracer = OBSERVED.tracer
        if tracer is not None:
            for each in pending:
                tracer.gave_up(each.letter)
        self._log_given_up(pending)
        return pending

    def _log_unavailable(self, text: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_again_s:
            logger.warning("%s waits to send its results: %s", self._handler.name, text)
            self._log_again_s = now_s + _LOG_EVERY_S

    def _log_given_up(self, pending: Sequence[PendingLetter]) -> None:
        """Log one line for all records given up in a while, so that a topic full of them does not fill the log."""
        self._unlogged += len(pending)
        now_s = self._clock.monotonic_s()
        if not pending or now_s < self._log_again_s:
            return
        last = pending[-1].letter
        logger.warning(
            "%s moved %s to its dead letters; the last is %s, after %s: %s",
            self._handler.name,
            count_text(self._unlogged, "record"),
            place_text(last.record, self._pointer_text),
            count_text(last.attempts, "attempt"),
            last.error,
        )
        self._unlogged = 0
        self._log_again_s = now_s + _LOG_EVERY_S

    def forget(self, assigned: AssignedPartition) -> None:
        """Drop the pending letters of a partition: its next owner decides again."""
        self._pending = [each for each in self._pending if each.assigned is not assigned]

    def gate(self) -> None:
        """Let the circuit breaker open or close the lanes."""
        was = self.breaker.circuit
        if was is Circuit.CLOSED:
            return
        if self.breaker.is_open():
            self._lanes.allow(0)
        elif was is Circuit.OPEN:
            self._lanes.allow(1)

    def succeeded(self) -> None:
        """Tell the circuit breaker that a record was handled."""
        if self.breaker.circuit is not Circuit.CLOSED:
            logger.info("%s: handling resumes", self._handler.name)
            self.breaker.succeeded()
            self._lanes.allow(None)
        else:
            self.breaker.succeeded()


class NamedHandler(Protocol):
    """The part of a handler that a dead letter names."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


def dead_letter_of(
    handler: NamedHandler, group: str, record: Record, error: BaseException, trace: str, failing: Failing
) -> DeadLetter:
    """The dead letter of a record that was given up."""
    return DeadLetter(
        id=letter_id_of(group, record),
        group=group,
        record=record,
        error=error_text(error),
        error_kind=type(error).__name__,
        traceback=trace[-_TRACE_LENGTH:],
        attempts=failing.attempts,
        first_ms=failing.first_ms,
        last_ms=failing.last_ms,
        handler=handler.name,
        handler_version=handler.version,
    )


def error_text(error: BaseException) -> str:
    """The class and the text of an error."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
