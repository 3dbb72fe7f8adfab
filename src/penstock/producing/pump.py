"""The pump: the thread that delivers records from the buffer to the stream, in order and with retries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.abc import Feature
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    LogError,
    PenstockError,
    StorageError,
    StreamError,
)
from penstock.producing.buffers import BufferedRecord, NumberedBuffer
from penstock.producing.counts import Counts
from penstock.producing.delivering import DeliveryParts, UndecidedError
from penstock.producing.pending_receipts import PendingReceipts
from penstock.producing.settings import ProducerSettings
from penstock.streams.declared import DeclaredTopics

logger = logging.getLogger(__name__)

_OUTCOMES_S: Final = 0.002
"""How long to wait for outcomes before looking at the buffer again."""
_IDLE_S: Final = 1.0
_CHECK_S: Final = 1.0
_SLICE_S: Final = 0.1

Refuse = Callable[[Sequence[BufferedRecord], str], None]
"""Stores records that can never be delivered."""


class Pump:
    """Delivers records in its own thread. Other threads wake it, and wait for what it commits.

    It keeps the order: failed records are sent again before any later record. After a failure nothing new is handed
    over until every record in flight has an outcome. Then the failed records are sent again in order. Where a batch was
    rejected, its records are sent one by one, so that only the bad ones are rejected.
    """

    def __init__(
        self,
        buffer: NumberedBuffer,
        chosen: DeliveryParts,
        settings: ProducerSettings,
        pending: PendingReceipts,
        counts: Counts,
        refuse: Refuse | None,
        declared: DeclaredTopics,
        on_failure: Callable[[], None],
    ) -> None:
        """A spool passes `refuse`, which stores rejected records. Without it, their receipts fail.

        Topics in `declared` are created before their first record is sent. `on_failure` is called when delivery ends
        for good.
        """
        self._buffer = buffer
        self._delivery = chosen.delivery
        self._provide = chosen.provide
        self._check = chosen.check
        self._look = chosen.look
        self._settings = settings
        self._pending = pending
        self._counts = counts
        self._refuse = refuse
        self._declared = declared
        self._on_failure = on_failure
        self._durable = Feature.DURABLE in buffer.features
        factor = chosen.in_flight if self._delivery.is_whole else 1
        self._limit_records = settings.batch_records * factor
        self._limit_bytes = settings.batch_bytes * factor
        self._most_under_way = settings.batch_records * chosen.in_flight
        self._under_way: dict[int, BufferedRecord] = {}
        self._failed: dict[int, tuple[BufferedRecord, DeliveryError]] = {}
        self.taken = -1
        """The number of the last record handed over."""
        self.committed = -1
        self.taking = threading.Lock()
        """Held while records are taken from the buffer, so that no record is dropped while it is being sent."""
        self.failure: PenstockError | None = None
        """Why this producer can no longer deliver."""
        self.ended = False
        self.idle = False
        """Nothing is left to do: a thread that puts records must set `wake`."""
        self.wake = threading.Event()
        self._hurried = threading.Event()
        self._delays_s: Iterator[float] | None = None
        self._failing_since_s: float | None = None
        self._check_at_s = 0.0
        self._news = threading.Condition()
        self._waiting = 0
        self._on_room: list[Callable[[], None]] = []
        self._stop_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # For other threads.

    def hurry(self) -> None:
        """Do not linger now: a caller waits for a receipt. Takes a millisecond at most."""
        self.nudge()
        self.wait_for_news(0.001)

    def nudge(self) -> None:
        self._hurried.set()
        self.wake.set()

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when records were committed or dropped, or after `timeout_s`."""
        with self._news:
            self._waiting += 1
            self._news.wait(timeout_s)
            self._waiting -= 1

    def call_on_room(self, callback: Callable[[], None]) -> None:
        """Call this once, in the pump's thread, after the next commit."""
        with self._news:
            self._on_room.append(callback)

    def tell_news(self) -> None:
        with self._news:
            callbacks, self._on_room = self._on_room, []
            self._news.notify_all()
        for callback in callbacks:
            callback()

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self, deadline_s: float) -> None:
        """Deliver until the deadline (by `time.monotonic`), then end. Returns when the thread has ended."""
        self._stop_at_s = deadline_s
        self._hurried.set()
        self.wake.set()
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            self._delivery.abandon()
            self.wake.set()
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        try:
            self._begin()
            while not self._is_over():
                self._turn()
        except _TimeIsOverError:
            logger.debug("the timeout passed before everything was delivered")
        except PenstockError as error:
            self.failure = error
            logger.error("this producer has stopped delivering: %s", error)
        except Exception as error:
            self.failure = DeliveryError(f"the producer failed: {type(error).__name__}: {error}")
            logger.exception("this producer has stopped delivering")
        finally:
            self._end()

    def _turn(self) -> None:
        self._check_stream()
        try:
            self._pending.mark(self._buffer.end)
            was_more = self._take()
            if self._under_way:
                self._collect_outcomes(0.0 if was_more else _OUTCOMES_S)
            else:
                self._commit()
                self._rest()
            if self._failed:
                self._repair()
        except StorageError as error:
            logger.error("%s; trying again", error)
            self._back_off()

    def _begin(self) -> None:
        """Start the delivery, and skip what an earlier process delivered but could not record."""
        while True:  # ends: nothing is left, or the first record was not delivered, or the time is over
            try:
                self._delivery.start()
                first = self._buffer.peek(-1, 1, 1)
                if not first:
                    return
                through = self._delivery.delivered_through(first[0])
            except (DeliveryError, StorageError) as error:
                if isinstance(error, DeliveryError) and not error.retriable:
                    raise
                logger.warning("%s; trying again", error)
                self._back_off()
                continue
            self._recovered()
            if through is None:
                return
            self._buffer.commit(through)
            self.committed = self.taken = through

    def _rest(self) -> None:
        """Wait until records are put: nothing is in flight. A thread that puts looks at `idle` afterwards."""
        self.idle = True
        if not self._failed and not self._is_over() and not self._buffer.peek(self.taken, 1, 1):
            self.wake.wait(_IDLE_S)
        self.wake.clear()
        self.idle = False

    # Handing over, and what becomes of it.

    def _take(self) -> bool:
        """Hand over the next batch, if it may be in flight now. Returns whether there was one."""
        under_way = len(self._under_way)
        if self._failed or under_way >= self._most_under_way or (under_way and not self._delivery.gathers):
            return False
        self._linger()
        with self.taking:
            batch = self._peek()
            if batch:
                self.taken = batch[-1].sequence
        if batch:
            self._send(batch)
        return bool(batch)

    def _linger(self) -> None:
        """Wait for more records, unless the delivery batches itself, a caller waits, or the batch is full."""
        if self._delivery.gathers:
            return
        if not self._hurried.is_set():
            found = self._buffer.peek(self.taken, self._limit_records, self._limit_bytes)
            if found and found[-1].sequence + 1 == self._buffer.end and len(found) < self._limit_records:
                self._hurried.wait(self._settings.linger_ms / 1000)
        self._hurried.clear()

    def _peek(self) -> list[BufferedRecord]:
        found = list(self._buffer.peek(self.taken, self._limit_records, self._limit_bytes))
        if found and self._delivery.is_whole:
            while found[-1].together_with > found[-1].sequence:
                last = found[-1]
                more = self._buffer.peek(last.sequence, last.together_with - last.sequence, self._settings.buffer_bytes)
                if not more:
                    break
                found += more
        return found

    def _send(self, batch: Sequence[BufferedRecord]) -> None:
        self._under_way.update((held.sequence, held) for held in batch)
        if self._declared.waiting:
            batch = self._with_topics(batch)
        if batch:
            self._delivery.send(batch)

    def _with_topics(self, batch: Sequence[BufferedRecord]) -> Sequence[BufferedRecord]:
        """Create the declared topics of these records. Returns the records whose topics exist; the others failed."""
        refused: dict[str, DeliveryError] = {}
        for name in dict.fromkeys(held.record.topic for held in batch):
            if name in self._declared.waiting:
                error = self._create(name)
                if error is not None:
                    refused[name] = error
        if not refused:
            return batch
        left = []
        for held in batch:
            error = refused.get(held.record.topic)
            if error is None and self._delivery.is_whole:
                error = DeliveryError(
                    f"its transaction was not started: {next(iter(refused.values()))}", retriable=True
                )
            if error is None:
                left.append(held)
            else:
                del self._under_way[held.sequence]
                self._not_delivered(held, error)
        return left

    def _create(self, name: str) -> DeliveryError | None:
        """Create a declared topic. Retries while the broker is unreachable, as long as a record may be retried."""
        deadline_s = None if self._durable else time.monotonic() + self._settings.delivery_timeout_s
        while True:
            try:
                self._declared.provide(name, self._provide)
            except (BrokerUnavailableError, ConfigError, StreamError, LogError) as error:
                is_away = isinstance(error, BrokerUnavailableError)
                if not is_away or (deadline_s is not None and time.monotonic() >= deadline_s):
                    return DeliveryError(f"a record for topic {name!r} was not delivered: {error}")
                if self._delays_s is None:
                    logger.warning("%s; trying again", error)
                self._back_off()
            else:
                self._recovered()
                return None

    def _collect_outcomes(self, wait_s: float = _OUTCOMES_S) -> None:
        if wait_s and self._hurried.is_set():
            self._hurried.clear()
            self._delivery.hurry()
        outcomes = self._delivery.outcomes(wait_s)
        if not outcomes:
            self._check_time()
            return
        settle, under_way = self._pending.settle, self._under_way
        delivered = 0
        for sequence, partition, offset, error in outcomes:
            held = under_way.pop(sequence, None)
            if held is None:
                continue  # from a client that was closed in the meantime
            if error is None:
                delivered += 1
                settle(sequence, partition, offset)
            else:
                self._not_delivered(held, error)
        self._counts.delivered += delivered
        self._commit()

    def _not_delivered(self, held: BufferedRecord, error: DeliveryError) -> None:
        if isinstance(error, UndecidedError) and not self._durable:
            self._counts.failed += 1
            self._pending.settle(held.sequence, -1, -1, error)
        elif error.retriable or self._refuse is not None or self._delivery.is_whole:
            self._failed[held.sequence] = (held, error)
        else:
            self._counts.refused += 1
            self._pending.settle(held.sequence, -1, -1, error)

    def _commit(self) -> None:
        """Commit everything before the first record without an outcome."""
        through = self.taken
        if self._under_way:
            through = next(iter(self._under_way)) - 1  # they are in order
        if self._failed:
            through = min(through, min(self._failed) - 1)
        if through > self.committed:
            self._buffer.commit(through)
            self.committed = through
            self._pending.committed(through)
            self._on_progress()

    def _repair(self) -> None:
        while self._under_way:
            self._collect_outcomes()
        while self._failed:  # ends: each turn a record succeeds, is rejected, or uses up time, which is limited
            units = self._units()
            suspects = sum(is_suspect for _, is_suspect in units)
            if not suspects:
                if self._is_too_late():
                    return
                self._back_off()
            elif len(units) == 1:
                self._refuse_unit(units[0][0])
                continue
            for batch in _runs(units):
                self._counts.retried += len(batch)
                for held in batch:
                    del self._failed[held.sequence]
                self._send(batch)
                while self._under_way:
                    self._collect_outcomes()
                if batch[0].sequence in self._failed and not self._settle_run(batch):
                    break
        self._recovered()

    def _settle_run(self, batch: list[BufferedRecord]) -> bool:
        """Handle a run that failed again. Returns whether the next one may be sent because this one was rejected."""
        errors = [self._failed[held.sequence][1] for held in batch if held.sequence in self._failed]
        is_one_unit = len({held.together_with if self._delivery.is_whole else held.sequence for held in batch}) == 1
        if is_one_unit and any(not error.retriable for error in errors):
            self._refuse_unit(batch)
            return True
        return False

    def _units(self) -> list[tuple[list[BufferedRecord], bool]]:
        """The failed records, in order, in units that must be sent together, and whether each unit was rejected for
        good."""
        units: list[tuple[list[BufferedRecord], bool]] = []
        for sequence in sorted(self._failed):
            held, error = self._failed[sequence]
            if units and self._delivery.is_whole and units[-1][0][-1].together_with >= sequence:
                units[-1][0].append(held)
                units[-1] = (units[-1][0], units[-1][1] or not error.retriable)
            else:
                units.append(([held], not error.retriable))
        return units

    def _refuse_unit(self, unit: list[BufferedRecord]) -> None:
        """Give up a unit: store it in the spool's `refused.jsonl`, or fail its receipts."""
        errors = {held.sequence: self._failed.pop(held.sequence)[1] for held in unit}
        reason = next((error for error in errors.values() if not error.retriable), errors[unit[0].sequence])
        if self._refuse is not None:
            try:
                self._refuse(unit, str(reason))
            except StorageError as error:
                logger.error("%s; trying again", error)
                self._failed.update((held.sequence, (held, errors[held.sequence])) for held in unit)
                self._back_off()
                return
        for held in unit:
            self._counts.refused += 1
            self._pending.settle(held.sequence, -1, -1, DeliveryError(str(reason)))
        self._commit()

    def _is_too_late(self) -> bool:
        """Fail what was retried until the timeout, if it is in memory only. Returns whether it was."""
        now_s = time.monotonic()
        self._failing_since_s = self._failing_since_s or now_s
        if self._durable or now_s - self._failing_since_s < self._settings.delivery_timeout_s:
            return False
        self._give_up_failed()
        return True

    def _give_up_failed(self) -> None:
        failed, self._failed = self._failed, {}
        for sequence, (_, error) in failed.items():
            self._counts.failed += 1
            self._pending.settle(sequence, -1, -1, DeliveryError(str(error)))
        self._recovered()
        self._commit()

    def _back_off(self) -> None:
        if self._delays_s is None:
            self._delays_s = self._settings.retry.delays_s()
        self._pause(next(self._delays_s))

    def _recovered(self) -> None:
        self._delays_s = None
        self._failing_since_s = None

    # The end.

    def _is_over(self) -> bool:
        if self._stop_at_s is None:
            return False
        self._check_time()
        return not self._under_way and not self._failed and not self._buffer.peek(self.taken, 1, 1)

    def _on_progress(self) -> None:
        if self._waiting or self._on_room:
            self.tell_news()

    def _pause(self, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._check_time()
            self._check_stream()
            self.wake.wait(min(left_s, _SLICE_S))
            self.wake.clear()
        self._check_time()

    def _check_stream(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._check_at_s:
            self._check_at_s = now_s + _CHECK_S
            self._check()
            self._look(len(self._under_way), self._counts.delivered)

    def _check_time(self) -> None:
        if self._stop_at_s is not None and time.monotonic() >= self._stop_at_s:
            raise _TimeIsOverError

    def _end(self) -> None:
        """Settle everything that is open, however the thread ended."""
        try:
            self._delivery.abandon()
            if self._under_way:
                self._collect_last_outcomes()
            self._delivery.close()
        except PenstockError as error:
            logger.error("the producer could not be closed cleanly: %s", error)
        finally:
            self.ended = True
            self.idle = False
            if self.failure is not None:
                self._on_failure()
            self.tell_news()

    def _collect_last_outcomes(self) -> None:
        """Collect outcomes that arrived in time."""
        for sequence, partition, offset, error in self._delivery.outcomes(0):
            if error is None and self._under_way.pop(sequence, None) is not None:
                self._counts.delivered += 1
                self._pending.settle(sequence, partition, offset)
        self._commit()


def _runs(units: list[tuple[list[BufferedRecord], bool]]) -> Iterator[list[BufferedRecord]]:
    """What is sent together: all retriable units up to the next rejected one, which is sent alone."""
    run: list[BufferedRecord] = []
    for unit, is_suspect in units:
        if is_suspect:
            if run:
                yield run
                run = []
            yield unit
        else:
            run += unit
    if run:
        yield run


class _TimeIsOverError(Exception):
    """The deadline of `stop` has passed."""
