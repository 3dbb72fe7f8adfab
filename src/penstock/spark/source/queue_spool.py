"""Queues as sources: the driver drains a queue into an embedded log, its spool, and queries read that.

A delivery is settled once its record is durable in the log. A driver that dies in between leaves the delivery
unsettled, so the queue delivers it again: a record is in the log at least once, and may be there twice. From the log
on, queries are as exact as on any other topic.

The spool is beside the checkpoints of its pipeline, and needs the same care: what is in it is no longer in the queue.
Records are removed from it once all queries that read the queue have processed them.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.abc import BatchSettling, Delivery, Outcome, Queue
from penstock.errors import PenstockError, StaleDeliveryError
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry
from penstock.queues import open_queue
from penstock.streams import Connection, connect
from penstock.streams.url import without_password

logger = logging.getLogger("penstock.spark")

AT_ONCE: Final = 500
"""How many deliveries are received, stored and settled together."""
TRIM_EVERY_S: Final = 60.0
_WAIT_S: Final = 0.5
_STORED_S: Final = 120.0
_STOP_S: Final = 10.0
_FOR_EVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Records leave the spool when they were processed, however long that takes."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9._-]+")


class QueueSpool:
    """Drains one queue into the log in a folder, for the time of a run."""

    def __init__(
        self, url: str, options: Mapping[str, Any], folder: Path, processed_by_all: Callable[[str], int | None]
    ) -> None:
        """`processed_by_all` gives the pointer in a topic up to which all queries have processed it; None: unknown."""
        self.shown = without_password(url)
        self.topic = _NOT_IN_NAMES.sub("-", self.shown).strip("-.")[:200]
        self.log_url = f"log:{folder}"
        self._url = url
        self._options = options
        self._clock = SystemClock()
        self._processed_by_all = processed_by_all
        self._processed: int | None = None
        self._removed = 0
        self._queue: Queue | None = None
        self._connection: Connection | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def create(self) -> None:
        """Open the queue, which raises if that fails, and create the spool."""
        if self._queue is None:
            with contextlib.ExitStack() as undoing:
                queue = open_queue(self._url, **self._options)
                undoing.callback(queue.close)
                connection = undoing.enter_context(connect(self.log_url))
                connection.admin().provide(self.topic, 1, _FOR_EVER)
                undoing.pop_all()
            self._queue, self._connection = queue, connection

    def start(self) -> None:
        """Drain in the background until `stop`."""
        self.create()
        logger.warning(
            "queue %s is drained into %s, topic %s: at least once. A record is settled in the queue once it is durable "
            "in this log, and may be there twice after a crash",
            self.shown,
            self.log_url,
            self.topic,
        )
        self._stopping.clear()
        self._thread = threading.Thread(target=self._drain, name=f"penstock-drain-{self.topic}", daemon=True)
        self._thread.start()

    def drain_what_is_there(self) -> None:
        """Drain until the queue is empty, or gives out only what was sent after this began."""
        self.create()
        began_ms = self._clock.wall_ms()
        while deliveries := self._drain_some():
            if all((each.record.timestamp_ms or 0) > began_ms for each in deliveries):
                return

    def stop(self) -> None:
        """Finish what was received, and close the queue, which delivers the rest to others."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._thread = None
        queue, self._queue = self._queue, None
        if queue is None:
            return
        with contextlib.ExitStack() as closing:
            if self._connection is not None:
                closing.callback(self._connection.close)
            closing.callback(queue.close)
            try:
                self.trim(has_ended=True)
            except PenstockError as error:
                logger.warning("processed records of queue %s are still in %s: %s", self.shown, self.log_url, error)
        self._connection = None

    def trim(self, *, has_ended: bool = False) -> None:
        """Remove records that all queries have processed; while they run, that had been processed at the last call."""
        before, self._processed = self._processed, self._processed_by_all(self.topic)
        reached = self._processed if has_ended else before
        if reached is None or reached == self._removed:
            return
        assert self._connection is not None
        self._connection.admin().delete_before(self.topic, {0: reached})
        self._removed = reached

    def _drain(self) -> None:
        delays_s = Retry().delays_s()
        trimmed_s = self._clock.monotonic_s()
        while not self._stopping.is_set():
            try:
                self._drain_some()
                delays_s = Retry().delays_s()
                if self._clock.monotonic_s() - trimmed_s >= TRIM_EVERY_S:
                    trimmed_s = self._clock.monotonic_s()
                    self.trim()
            except Exception as error:  # whatever it was, the queue keeps what is not settled
                logger.warning("queue %s could not be drained; trying again: %s", self.shown, error)
                self._stopping.wait(next(delays_s))

    def _drain_some(self) -> list[Delivery]:
        """Receive deliveries, store their records, and settle them. Gives what was received."""
        assert self._queue is not None
        assert self._connection is not None
        deliveries = list(self._queue.receive(AT_ONCE, _WAIT_S))
        receipts = [
            self._connection.send(
                self.topic,
                each.record.value,
                each.record.key,
                headers=each.record.headers,
                timestamp=each.record.timestamp_ms,
            )
            for each in deliveries
        ]
        stored: list[Delivery] = []
        try:
            for each, receipt in zip(deliveries, receipts, strict=True):
                receipt.result(_STORED_S)
                stored.append(each)
        finally:
            if stored:
                self._settle(self._queue, stored)
        return deliveries

    def _settle(self, queue: Queue, deliveries: list[Delivery]) -> None:
        if isinstance(queue, BatchSettling):
            late = len(queue.settle_all(deliveries, Outcome.DONE))
        else:
            late = 0
            for each in deliveries:
                try:
                    queue.settle(each, Outcome.DONE)
                except StaleDeliveryError:
                    late += 1
        if late:
            logger.warning("queue %s delivers %d records again that are in the log", self.shown, late)
