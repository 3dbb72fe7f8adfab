"""A queue of records under way to a server, for backends whose client does not batch by itself.

`TopicStream.append` puts records in and returns; one thread takes them out in batches, while the one before is stored.
So a program that appends record by record still sends large requests, and the order of the records is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BrokerUnavailableError, ConnectionClosedError, DeliveryError, PenstockError
from penstock.model import NewRecord, Receipt
from penstock.model.retry import Retry
from penstock.streams.adapting.stream_base import receipts_for
from penstock.streams.forks import FORKS

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S: Final = 1.0
_AGAIN: Final = Retry(None, first_delay_s=0.05, max_delay_s=LONGEST_PAUSE_S)
CLOSING_S: Final = 30.0
"""How long `close` waits for records that are under way, if the delivery timeout is not shorter."""
_OVERHEAD_BYTES: Final = 64
"""What a record takes beyond its key and value, about."""


@dataclass(slots=True)
class Appended:
    """A record under way, and its receipt."""

    record: NewRecord
    receipt: Receipt
    size_bytes: int


Attempt = Callable[[], None]
"""One attempt to store a batch: it settles receipts. BrokerUnavailableError that is retriable: the same again, later,
for the receipts that are not settled. Any other error: they fail with it."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much the queue holds, and how much goes into one batch."""

    records: int = 100_000
    size_bytes: int = 64 << 20
    batch_records: int = 1_000
    batch_bytes: int = 1 << 20


class AppendQueue:
    """Holds records of one topic until they are stored. Any thread may put records.

    `plan(batch)` is called once for each batch, by the queue's own thread. What it returns is called until the batch is
    settled or `timeout_s` is over.
    """

    def __init__(
        self,
        topic: str,
        plan: Callable[[Sequence[Appended]], Attempt],
        *,
        timeout_s: float,
        limits: QueueLimits | None = None,
    ) -> None:
        self._topic = topic
        self._plan = plan
        self._timeout_s = timeout_s
        self._limits = limits or QueueLimits()
        self._changed = threading.Condition()
        self._waiting: deque[Appended] = deque()
        self._waiting_bytes = 0
        self._is_idle = True
        """The thread waits for records: it must be told of new ones."""
        self._closed = False
        self._given_up = False
        """Nobody waits any longer for what is under way."""
        self._thread: threading.Thread | None = None
        self._forks = FORKS.count

    def put(self, records: Sequence[NewRecord]) -> list[Receipt]:
        """Take records in this order, waiting while there is no room. Those for which there is none in time fail."""
        self.check_open()
        receipts = receipts_for(self._topic, records)
        taken = 0
        problem: DeliveryError | None = None
        with self._changed:
            for record, receipt in zip(records, receipts, strict=True):
                if len(self._waiting) >= self._limits.records or self._waiting_bytes >= self._limits.size_bytes:
                    problem = self._wait_for_room()
                    if problem is not None:
                        break
                size = _OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
                self._waiting.append(Appended(record, receipt, size))
                self._waiting_bytes += size
                taken += 1
            if self._is_idle:
                self._start()
        for record, receipt in zip(records[taken:], receipts[taken:], strict=True):
            receipt.settle(record.partition or 0, -1, problem)
        return receipts

    def check_open(self) -> None:
        check_appendable(self._topic, self._closed, self._forks)

    def close(self) -> None:
        """Wait until all records are settled. Those that are not stored in time fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or self._forks != FORKS.count or thread is threading.current_thread():
            return
        thread.join(min(self._timeout_s, CLOSING_S))
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        thread.join(CLOSING_S)

    def _start(self) -> None:
        """The caller holds `_changed`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"append to {self._topic}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _wait_for_room(self) -> DeliveryError | None:
        """Wait for room; the error if there is none in time. The caller holds `_changed`."""
        self._start()

        def has_room() -> bool:
            few = len(self._waiting) < self._limits.records and self._waiting_bytes < self._limits.size_bytes
            return few or self._closed

        if not self._changed.wait_for(has_room, self._timeout_s):
            return DeliveryError(
                f"topic {self._topic!r}: {len(self._waiting)} records are waiting to be stored, and there was no room "
                f"for more within {self._timeout_s:g} s",
                retriable=True,
            )
        if self._closed:
            return DeliveryError(f"the stream of topic {self._topic!r} was closed before there was room for a record")
        return None

    def _run(self) -> None:
        while batch := self._take():
            self._store(batch)

    def _take(self) -> list[Appended]:
        """The next batch; empty when the queue is closed and nothing is left."""
        with self._changed:
            self._is_idle = True
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._is_idle = False
            batch: list[Appended] = []
            size_bytes = 0
            while self._waiting and len(batch) < self._limits.batch_records:
                size_bytes += self._waiting[0].size_bytes
                if batch and size_bytes > self._limits.batch_bytes:
                    size_bytes -= self._waiting[0].size_bytes
                    break
                batch.append(self._waiting.popleft())
            self._waiting_bytes -= size_bytes
            self._changed.notify_all()
            return batch

    def _store(self, batch: Sequence[Appended]) -> None:
        until_s = time.monotonic() + self._timeout_s
        attempt, delays_s = self._plan(batch), _AGAIN.delays_s()
        while (failure := self._try(attempt)) is not None:  # ends: at the latest when the time is over
            left_s = until_s - time.monotonic()
            is_retriable = isinstance(failure, BrokerUnavailableError) and failure.retriable
            if not is_retriable or left_s <= 0 or self._given_up:
                self._fail(batch, failure)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._given_up, min(left_s, next(delays_s)))

    def _try(self, attempt: Attempt) -> Exception | None:
        """Try once; the error if it failed."""
        try:
            attempt()
        except PenstockError as error:
            return error
        except Exception as error:
            logger.exception("records for topic %r could not be stored", self._topic)
            return error
        return None

    def _fail(self, batch: Sequence[Appended], error: Exception) -> None:
        reason = delivery_error(error)
        for appended in batch:
            if not appended.receipt.done:
                appended.receipt.settle(appended.record.partition or 0, -1, reason)


def check_appendable(topic: str, is_closed: bool, forks: int) -> None:
    """Raise ConnectionClosedError for a stream that was closed, or opened after another number of forks."""
    if is_closed:
        raise ConnectionClosedError(f"the stream of topic {topic!r} is closed: open it again")
    if forks != FORKS.count:
        raise ConnectionClosedError(
            f"the stream of topic {topic!r} was opened before this process was forked: open it here, too"
        )


def delivery_error(error: Exception) -> DeliveryError:
    """The error of a receipt whose record was not stored because of this one."""
    if isinstance(error, DeliveryError):
        return error
    refusal = DeliveryError(str(error), retriable=isinstance(error, BrokerUnavailableError) and error.retriable)
    refusal.__cause__ = error
    return refusal
