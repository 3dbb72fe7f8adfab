"""What happens to a record that failed: it is tried again, or it becomes a dead letter."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.abc import Clock, DeadLetters
from penstock.consuming.breaker import Circuit, CircuitBreaker
from penstock.consuming.counts import Counts
from penstock.consuming.dead_letters.headers import letter_id_of
from penstock.consuming.handlers import Handler
from penstock.consuming.lanes import Lane, Lanes, Span, Task
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.retry import NEVER_AGAIN
from penstock.consuming.runners import Report
from penstock.consuming.share import Share
from penstock.errors import HandlerError, PenstockError, WorkerDiedError
from penstock.model import Batch, DeadLetter, Failing, Guarantee, Order, Record
from penstock.model.observing import OBSERVED

logger = logging.getLogger(__name__)

_PUT_AGAIN_S: Final = 1.0
_TELL_EVERY_S: Final = 10.0
_TRACE_LENGTH: Final = 20_000


class ExhaustedError(PenstockError):
    """A record was given up, and there are no dead letters for it to go to."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A record on its way to the dead letters."""

    letter: DeadLetter
    share: Share
    lane: Lane
    batch: Batch
    index: int
    rest: tuple[Span, ...]
    """What comes behind it in the same task."""


class GivingUp:
    """Decides about failures. Used by the consumer's loop alone."""

    def __init__(
        self,
        handler: Handler,
        group: str,
        options: ConsumerOptions,
        letters: DeadLetters | None,
        lanes: Lanes,
        clock: Clock,
        counts: Counts,
    ) -> None:
        self._handler = handler
        self._group = group
        self._options = options
        self._letters = letters
        self._lanes = lanes
        self._clock = clock
        self._counts = counts
        self._chance = random.Random(options.seed)
        self.breaker = CircuitBreaker(options.breaker, clock)
        self._given_up: list[GivenUp] = []
        self._put_again_s = 0.0
        self._told = 0
        self._untold = 0
        self._tell_again_s = 0.0
        self.put_problem = ""
        """Why the dead letters cannot be put, while that is so."""

    def failed(self, report: Report) -> None:
        """A task ended in an error: hold its lane and try again, or give its record up."""
        task, error = report.task, report.error
        assert error is not None
        if isinstance(error, HandlerError):
            raise error  # the program is wrong, not the record: every other one would fail like this, too
        self._counts.failed += 1
        share, batch, index = task.share, task.batch, report.done
        pointer = batch.pointer(index)
        first, end = batch.edge(index), batch.edge(index + 1)
        text = describe(error)
        failing = share.tracker.failed(pointer, first, end, text, task.begun_ms)
        here: Span = (batch, index, task.high)
        if self.breaker.circuit is Circuit.TRYING:
            if not isinstance(error, NEVER_AGAIN):
                self.breaker.may_give_up(text)
                self._wait_for_the_circuit(task, here, text)
                return
            self._lanes.allow(1)  # that record says nothing about the handler's health: try another
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            delay_s = None
        else:
            delay_s = self._options.retry.delay_after(failing.attempts, error, self._chance)
        if delay_s is not None:
            self._counts.retried += 1
            self._lanes.release(task.lane, [here], delay_s)
            return
        if report.is_whole:
            self._counts.retried += 1
            # Nobody knows which of the batch it is: each is tried alone, and only those that fail then are given up.
            alone: list[Span] = [(batch, each, each + 1) for each in range(index, task.high)]
            self._lanes.release(task.lane, alone)
            return
        if not isinstance(error, NEVER_AGAIN) and not self.breaker.may_give_up(text):
            self._wait_for_the_circuit(task, here, text)
            return
        self._give_up(report, failing, text)

    def killer(self, share: Share, batch: Batch, index: int) -> None:
        """A record has killed those who handled it often enough."""
        failing = share.tracker.failing(batch.pointer(index))
        assert failing is not None
        error = WorkerDiedError(f"the process ended while it handled this record, {failing.attempts - 1} times")
        task = Task(
            share.lane if self._options.order is Order.PARTITION else Lane(share, None),
            batch,
            index,
            index + 1,
            self._clock,
        )
        self._give_up(Report(task, index, error), failing, describe(error))

    def _wait_for_the_circuit(self, task: Task, here: Span, text: str) -> None:
        self._counts.retried += 1
        if self._told != self.breaker.opened:
            self._told = self.breaker.opened
            logger.error(
                "%s: too many records in a row fail, the last one with %s; nothing is handled for %.1f s",
                self._handler.name,
                text,
                self.breaker.opens_again_in_s,
            )
        self._lanes.release(task.lane, [here], self.breaker.opens_again_in_s)

    def _give_up(self, report: Report, failing: Failing, text: str) -> None:
        task, error, batch, index = report.task, report.error, report.task.batch, report.done
        share = task.share
        if self._letters is None:
            raise ExhaustedError(
                f"{self._handler.name} could not handle {batch[index].place}: {text}. There are no dead letters for it "
                "to go to, so this consumer stops: mend the handler, or declare dead_letters"
            ) from error
        record = batch[index]
        assert error is not None
        letter = letter_of(self._handler, self._group, record, error, report.trace, failing)
        rest: tuple[Span, ...] = ((batch, index + 1, task.high),) if index + 1 < task.high else ()
        self._given_up.append(GivenUp(letter, share, task.lane, batch, index, rest))

    @property
    def waiting(self) -> int:
        """Records that wait for the dead letters to take them."""
        return len(self._given_up)

    def put(self) -> list[GivenUp]:
        """Bring what was given up to the dead letters. Gives those that are there now: they are finished.

        While the dead letters cannot be reached, their records stay unfinished, and it is tried again.
        """
        if not self._given_up or self._clock.monotonic_s() < self._put_again_s:
            return []
        assert self._letters is not None
        given_up = [each for each in self._given_up if not each.share.closed]
        try:
            if given_up:
                self._letters.put([each.letter for each in given_up])
        except PenstockError as error:
            if not self.put_problem:
                logger.error("%s: its dead letters cannot be put, and wait: %s", self._handler.name, error)
            self.put_problem = str(error)
            self._put_again_s = self._clock.monotonic_s() + _PUT_AGAIN_S
            return []
        self.put_problem = ""
        self._given_up = []
        self._counts.exhausted += len(given_up)
        tracer = OBSERVED.tracer
        if tracer is not None:
            for each in given_up:
                tracer.gave_up(each.letter)
        self._tell_of(given_up)
        return given_up

    def _tell_of(self, given_up: Sequence[GivenUp]) -> None:
        """One line for all that were given up in a while: a topic full of them must not fill the log as well."""
        self._untold += len(given_up)
        now_s = self._clock.monotonic_s()
        if not given_up or now_s < self._tell_again_s:
            return
        last = given_up[-1].letter
        logger.warning(
            "%s gave up %d records, which are with its dead letters; the last is %s, after %d attempts: %s",
            self._handler.name,
            self._untold,
            last.record.place,
            last.attempts,
            last.error,
        )
        self._untold = 0
        self._tell_again_s = now_s + _TELL_EVERY_S

    def forget(self, share: Share) -> None:
        """The partition is no longer ours: its next owner decides again."""
        self._given_up = [each for each in self._given_up if each.share is not share]

    def gate(self) -> None:
        """Let through what the circuit breaker allows."""
        was = self.breaker.circuit
        if was is Circuit.CLOSED:
            return
        if self.breaker.is_open():
            self._lanes.allow(0)
        elif was is Circuit.OPEN:
            self._lanes.allow(1)

    def succeeded(self) -> None:
        """Something was handled."""
        if self.breaker.circuit is not Circuit.CLOSED:
            logger.info("%s: records are handled again", self._handler.name)
            self.breaker.succeeded()
            self._lanes.allow(None)
        else:
            self.breaker.succeeded()


class GaveUp(Protocol):
    """Who gave a record up, as its letter names it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...


def letter_of(
    handler: GaveUp, group: str, record: Record, error: BaseException, trace: str, failing: Failing
) -> DeadLetter:
    """The dead letter of a record that is given up."""
    return DeadLetter(
        id=letter_id_of(group, record),
        group=group,
        record=record,
        error=describe(error),
        error_kind=type(error).__name__,
        traceback=trace[-_TRACE_LENGTH:],
        attempts=failing.attempts,
        first_ms=failing.first_ms,
        last_ms=failing.last_ms,
        handler=handler.name,
        handler_version=handler.version,
    )


def describe(error: BaseException) -> str:
    """The class of an error and its text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
