"""The pump: one thread that carries records from the buffer to the stream until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import DeliveryError, PenstockError, StorageError
from penstock.producing.buffered import NumberedBuffer
from penstock.producing.carrier import HEAR_S, Carrier, Refuse
from penstock.producing.counts import Counts
from penstock.producing.delivering import Delivery
from penstock.producing.ledger import Ledger
from penstock.producing.settings import ProducerSettings

logger = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
_CHECK_S: Final = 1.0
_SLICE_S: Final = 0.1


class Pump(Carrier):
    """A carrier with a thread of its own, and everything by which other threads wait for it and wake it."""

    def __init__(
        self,
        buffer: NumberedBuffer,
        delivery: Delivery,
        settings: ProducerSettings,
        ledger: Ledger,
        counts: Counts,
        in_flight: int,
        refuse: Refuse | None,
        check: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        """`check` raises when the stream cannot be used any more. `on_failure`: nothing more is delivered.

        The others are those of `Carrier`.
        """
        super().__init__(buffer, delivery, settings, ledger, counts, in_flight, refuse)
        self._check = check
        self._check_at_s = 0.0
        self._on_failure = on_failure
        self.failure: PenstockError | None = None
        """Why this producer can deliver nothing any more."""
        self.ended = False
        self.idle = False
        """Nothing is left to do: who puts something sets `wake`."""
        self.wake = threading.Event()
        self._news = threading.Condition()
        self._waiting = 0
        self._on_room: list[Callable[[], None]] = []
        self._stop_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # For other threads.

    def hurry(self) -> None:
        """Somebody waits for a receipt: it is not lingered now. Takes a millisecond at most."""
        self.nudge()
        self.wait_for_news(0.001)

    def nudge(self) -> None:
        self._hurried.set()
        self.wake.set()

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when something was committed or dropped, or after a while."""
        with self._news:
            self._waiting += 1
            self._news.wait(timeout_s)
            self._waiting -= 1

    def call_on_room(self, callback: Callable[[], None]) -> None:
        """Call this once, in the thread of the pump, when something was committed next."""
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
        """Deliver what there is until the deadline (by `time.monotonic`), then end. Returns when it has ended."""
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
            logger.debug("the time was over before everything was delivered")
        except PenstockError as error:
            self.failure = error
            logger.error("this producer delivers nothing any more: %s", error)
        except Exception as error:
            self.failure = DeliveryError(f"the producer failed: {type(error).__name__}: {error}")
            logger.exception("this producer delivers nothing any more")
        finally:
            self._end()

    def _turn(self) -> None:
        self._check_stream()
        try:
            self._ledger.mark(self._buffer.end)
            was_more = self._take()
            if self._under_way:
                self._hear(0.0 if was_more else HEAR_S)
            else:
                self._commit()
                self._rest()
            if self._failed:
                self._repair()
        except StorageError as error:
            logger.error("%s; trying again", error)
            self._back_off()

    def _begin(self) -> None:
        """Get the delivery ready, and pass over what an earlier process delivered without being able to say so."""
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
        """Nothing is under way: wait until something is put. Who puts looks at `idle` after it has put."""
        self.idle = True
        if not self._failed and not self._is_over() and not self._buffer.peek(self.taken, 1, 1):
            self.wake.wait(_IDLE_S)
        self.wake.clear()
        self.idle = False

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

    def _check_time(self) -> None:
        if self._stop_at_s is not None and time.monotonic() >= self._stop_at_s:
            raise _TimeIsOverError

    def _end(self) -> None:
        """Settle what is open, whichever way it ended."""
        try:
            self._delivery.abandon()
            if self._under_way:
                self._hear_last_words()
            self._delivery.close()
        except PenstockError as error:
            logger.error("the producer could not be ended cleanly: %s", error)
        finally:
            self.ended = True
            self.idle = False
            if self.failure is not None:
                self._on_failure()
            self.tell_news()

    def _hear_last_words(self) -> None:
        """What was acknowledged in time is told as such."""
        for sequence, partition, offset, error in self._delivery.outcomes(0):
            if error is None and self._under_way.pop(sequence, None) is not None:
                self._counts.delivered += 1
                self._ledger.settle(sequence, partition, offset)
        self._commit()


class _TimeIsOverError(Exception):
    """The deadline of `stop` has come."""
