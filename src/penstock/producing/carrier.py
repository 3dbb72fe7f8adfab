"""Carrying records to the stream: handing over, hearing what became of each, and trying again in the right order."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.abc import Feature
from penstock.errors import DeliveryError, StorageError
from penstock.producing.buffered import NumberedBuffer
from penstock.producing.counts import Counts
from penstock.producing.delivering import Delivery, UndecidedError
from penstock.producing.kept import Held
from penstock.producing.ledger import Ledger
from penstock.producing.settings import ProducerSettings

logger = logging.getLogger(__name__)

HEAR_S: Final = 0.002
"""How long news of what is under way are waited for before the buffer is looked at again."""

Refuse = Callable[[Sequence[Held], str], None]
"""Keeps records that can never be delivered."""


class Carrier(abc.ABC):
    """Keeps the order: what failed is tried again before anything behind it that could depend on it is sent.

    When something failed, nothing more is handed over until all that is under way has come to an end. Then what failed
    is sent again in its order: at once if it is to be tried again, and, where a refusal may have met innocents of the
    same batch, those that were refused one by one, so that each is judged alone.
    """

    def __init__(
        self,
        buffer: NumberedBuffer,
        delivery: Delivery,
        settings: ProducerSettings,
        ledger: Ledger,
        counts: Counts,
        in_flight: int,
        refuse: Refuse | None,
    ) -> None:
        """`refuse` is there for a spool: what the stream refuses is kept by it. Without, its receipt fails."""
        self._buffer = buffer
        self._delivery = delivery
        self._settings = settings
        self._ledger = ledger
        self._counts = counts
        self._refuse = refuse
        self._durable = Feature.DURABLE in buffer.features
        factor = in_flight if delivery.is_whole else 1
        self._limit_records = settings.batch_records * factor
        self._limit_bytes = settings.batch_bytes * factor
        self._most_under_way = settings.batch_records * in_flight
        self._under_way: dict[int, Held] = {}
        self._failed: dict[int, tuple[Held, DeliveryError]] = {}
        self.taken = -1
        """The number of the last record that was handed over."""
        self.committed = -1
        self.taking = threading.Lock()
        """Held while records are taken from the buffer, so that none is dropped that is about to be sent."""
        self._hurried = threading.Event()
        self._waits_s: Iterator[float] | None = None
        self._failing_since_s: float | None = None

    @abc.abstractmethod
    def _on_progress(self) -> None:
        """Something was committed."""

    @abc.abstractmethod
    def _check_time(self) -> None:
        """Raise when the time is over."""

    @abc.abstractmethod
    def _pause(self, duration_s: float) -> None:
        """Wait before something is tried again. Raises when the time is over."""

    def _take(self) -> bool:
        """Hand over a batch of what is new, if it may be under way beside the others. Whether there was one."""
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
        """Wait for more, unless the delivery does so itself, somebody waits for this, or there is enough."""
        if self._delivery.gathers:
            return
        if not self._hurried.is_set():
            found = self._buffer.peek(self.taken, self._limit_records, self._limit_bytes)
            if found and found[-1].sequence + 1 == self._buffer.end and len(found) < self._limit_records:
                self._hurried.wait(self._settings.linger_ms / 1000)
        self._hurried.clear()

    def _peek(self) -> list[Held]:
        found = list(self._buffer.peek(self.taken, self._limit_records, self._limit_bytes))
        if found and self._delivery.is_whole:
            while found[-1].together_with > found[-1].sequence:
                last = found[-1]
                more = self._buffer.peek(last.sequence, last.together_with - last.sequence, self._settings.buffer_bytes)
                if not more:
                    break
                found += more
        return found

    def _send(self, batch: Sequence[Held]) -> None:
        self._under_way.update((held.sequence, held) for held in batch)
        self._delivery.send(batch)

    def _hear(self, wait_s: float = HEAR_S) -> None:
        if wait_s and self._hurried.is_set():
            self._hurried.clear()
            self._delivery.hurry()
        outcomes = self._delivery.outcomes(wait_s)
        if not outcomes:
            self._check_time()
            return
        settle, under_way = self._ledger.settle, self._under_way
        delivered = 0
        for sequence, partition, offset, error in outcomes:
            held = under_way.pop(sequence, None)
            if held is None:
                continue  # of a client that was given up meanwhile
            if error is None:
                delivered += 1
                settle(sequence, partition, offset)
            else:
                self._not_delivered(held, error)
        self._counts.delivered += delivered
        self._commit()

    def _not_delivered(self, held: Held, error: DeliveryError) -> None:
        if isinstance(error, UndecidedError) and not self._durable:
            self._counts.failed += 1
            self._ledger.settle(held.sequence, -1, -1, error)
        elif error.retriable or self._refuse is not None or self._delivery.is_whole:
            self._failed[held.sequence] = (held, error)
        else:
            self._counts.refused += 1
            self._ledger.settle(held.sequence, -1, -1, error)

    def _commit(self) -> None:
        """Everything before the first record that has not come to its end is done."""
        through = self.taken
        if self._under_way:
            through = next(iter(self._under_way)) - 1  # they are there in their order
        if self._failed:
            through = min(through, min(self._failed) - 1)
        if through > self.committed:
            self._buffer.commit(through)
            self.committed = through
            self._ledger.committed(through)
            self._on_progress()

    def _repair(self) -> None:
        while self._under_way:
            self._hear()
        while self._failed:  # ends: each turn something succeeds, is refused, or takes time, which is limited
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
                    self._hear()
                if batch[0].sequence in self._failed and not self._settle_run(batch):
                    break
        self._recovered()

    def _settle_run(self, batch: list[Held]) -> bool:
        """A run has failed again. Whether the next one may be sent: this one was refused, and is out of the way."""
        errors = [self._failed[held.sequence][1] for held in batch if held.sequence in self._failed]
        is_one_unit = len({held.together_with if self._delivery.is_whole else held.sequence for held in batch}) == 1
        if is_one_unit and any(not error.retriable for error in errors):
            self._refuse_unit(batch)
            return True
        return False

    def _units(self) -> list[tuple[list[Held], bool]]:
        """What failed, in its order, in parts that must go together; and whether a part was refused for good."""
        units: list[tuple[list[Held], bool]] = []
        for sequence in sorted(self._failed):
            held, error = self._failed[sequence]
            if units and self._delivery.is_whole and units[-1][0][-1].together_with >= sequence:
                units[-1][0].append(held)
                units[-1] = (units[-1][0], units[-1][1] or not error.retriable)
            else:
                units.append(([held], not error.retriable))
        return units

    def _refuse_unit(self, unit: list[Held]) -> None:
        """Never to be delivered: kept by the spool's file of refused records, or else known from its receipt."""
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
            self._ledger.settle(held.sequence, -1, -1, DeliveryError(str(reason)))
        self._commit()

    def _is_too_late(self) -> bool:
        """Give up what has been tried for long enough, if it is in memory only. Whether it was."""
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
            self._ledger.settle(sequence, -1, -1, DeliveryError(str(error)))
        self._recovered()
        self._commit()

    def _back_off(self) -> None:
        if self._waits_s is None:
            self._waits_s = self._settings.retry.waits_s()
        self._pause(next(self._waits_s))

    def _recovered(self) -> None:
        self._waits_s = None
        self._failing_since_s = None


def _runs(units: list[tuple[list[Held], bool]]) -> Iterator[list[Held]]:
    """What is sent together: all that may be tried again up to the next part that was refused, which goes alone."""
    run: list[Held] = []
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
