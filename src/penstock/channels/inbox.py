"""The durable inbox of a channel: a topic of an embedded log, on the disk of this machine.

Records are acknowledged to their senders, where a channel has answers, once they are in the inbox. They are removed
from it when the caller says that they were delivered.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.abc import Acknowledging, Channel, Clock, CountingLosses, Pointer, RecognisingRepeats
from penstock.errors import BrokerUnavailableError, ConnectionClosedError, DeliveryError, PenstockError, StreamError
from penstock.model import Receipt, Record
from penstock.model.clock import SystemClock
from penstock.model.observing import OBSERVED
from penstock.model.retry import Retry
from penstock.streams import Connection, connect

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""How many records are stored and acknowledged together."""
MOST_REMEMBERED: Final = 100_000
"""How many of the newest records in the inbox a channel is told about, so that it recognises repeats."""
_WAIT_S: Final = 0.2
_STORED_S: Final = 30.0
_DRAIN_S: Final = 5.0
_STOP_S: Final = 10.0
_SETTINGS: Final = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "104857600"}
"""The configuration of the topic: nothing expires, and whatever a channel receives fits."""
_AGAIN: Final = Retry(first_delay_s=0.1, max_delay_s=5.0)


@dataclass(slots=True)
class InboxCounts:
    """Counters since the start. One thread writes; readers may be slightly behind."""

    stored: int = 0
    """Records that are in the inbox, and acknowledged where the channel has answers."""
    refused: int = 0
    """Records that could not be stored, whose senders were told."""
    lost: int = 0
    """Records that could not be stored before the inbox was closed, and whose senders cannot be told."""


class Inbox:
    """Listens to a channel in a thread of its own, from `start` to `stop`, and stores what arrives."""

    def __init__(self, channel: Channel, log_url: str, clock: Clock | None = None) -> None:
        """Open the log. The topic has the name of the channel."""
        self.channel = channel
        self._clock = clock or SystemClock()
        self.topic = channel.name
        self.counts = InboxCounts()
        self.error: BaseException | None = None
        """What ended the listening before `stop`."""
        self._url = log_url
        self._connection: Connection = connect(log_url)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._deleted: dict[int, Pointer] = {}
        self._delivered: collections.deque[tuple[float, dict[int, Pointer]]] = collections.deque()
        """What was delivered, and when it was said, until it is deleted."""
        try:
            self._connection.admin().provide(self.topic, 1, _SETTINGS)
        except BaseException:
            self._connection.close()
            raise

    @property
    def lost(self) -> int:
        """Records known to be lost: by the transport, or because they could not be stored."""
        return self.counts.lost + (self.channel.lost if isinstance(self.channel, CountingLosses) else 0)

    def start(self, on_failure: Callable[[], object] = lambda: None) -> None:
        """Start to listen in a thread. If a permanent error ends it, `error` is set and `on_failure` called."""
        self._thread = threading.Thread(
            target=self._run, args=(on_failure,), name=f"penstock-inbox-{self.topic}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Store what arrives within a few more seconds at most, then close the channel and the log."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        self.channel.close()
        try:
            self._connection.close()
        except DeliveryError as error:  # the senders of these records know, or they are counted as lost
            logger.warning("records that were refused or given up did not reach the inbox %s: %s", self._url, error)

    def delete_before(self, delivered: dict[int, Pointer]) -> None:
        """Delete delivered records up to these pointers, except those that the channel must still recognise."""
        window_s = self.channel.repeat_window_s if isinstance(self.channel, RecognisingRepeats) else 0.0
        now_s = self._clock.monotonic_s()
        self._delivered.append((now_s, delivered))
        due: dict[int, Pointer] = {}
        while self._delivered and now_s - self._delivered[0][0] >= window_s:
            due.update(self._delivered.popleft()[1])
        new = {partition: pointer for partition, pointer in due.items() if pointer > self._deleted.get(partition, 0)}
        if new:
            self._connection.admin().delete_before(self.topic, new)
            self._deleted.update(new)

    def _run(self, on_failure: Callable[[], object]) -> None:
        OBSERVED.enter(self)
        try:
            self._listen()
        except BaseException as error:
            self.error = error
            on_failure()
        finally:
            OBSERVED.leave(self)

    def _listen(self) -> None:
        delays_s = _AGAIN.delays_s()
        to_tell = self.channel if isinstance(self.channel, RecognisingRepeats) else None
        while not self._stopping.is_set():
            try:
                if to_tell is not None:
                    self._tell_stored(to_tell)
                    to_tell = None
                records = self.channel.listen(AT_ONCE, _WAIT_S)
            except ConnectionClosedError:
                raise
            except (BrokerUnavailableError, StreamError) as error:
                logger.warning("channel %s: %s; trying again", self.topic, error)
                self._stopping.wait(next(delays_s))
                continue
            delays_s = _AGAIN.delays_s()
            if records:
                self._store(records)
        until_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < until_s and (records := self.channel.listen(AT_ONCE, 0.0)):
            self._store(records)

    def _tell_stored(self, channel: RecognisingRepeats) -> None:
        """Tell the channel which records the inbox already holds."""
        if not channel.repeat_window_s:
            return
        topic = self._connection.open_topic(self.topic)
        try:
            start, end = topic.span(0)
            start = max(start, end - MOST_REMEMBERED)
            while start < end:  # ends: each batch leads on, or there is none
                batch = topic.read(0, start, AT_ONCE, _WAIT_S)
                if batch.next <= start:
                    return
                channel.remember(batch)
                start = batch.next
        finally:
            topic.close()

    def _store(self, records: Sequence[Record]) -> None:
        """Store records. Where senders cannot be told to wait, retry for as long as it takes."""
        delays_s = _AGAIN.delays_s()
        while True:
            stored, failed, error = self._store_once(records)
            self.counts.stored += len(stored)
            if isinstance(self.channel, Acknowledging) and stored:
                self.channel.acknowledge(stored)
            if error is None:
                return
            if isinstance(self.channel, Acknowledging):
                logger.warning("%d records of channel %s were refused: %s", len(failed), self.topic, error)
                self.channel.refuse(failed, str(error), again=True)
                self.counts.refused += len(failed)
                return
            if self._stopping.wait(next(delays_s)):
                logger.error(
                    "%d records of channel %s are lost, as the inbox cannot store them: %s",
                    len(failed),
                    self.topic,
                    error,
                )
                self.counts.lost += len(failed)
                return
            logger.warning("%d records of channel %s wait to be stored: %s", len(failed), self.topic, error)
            records = failed

    def _no_answer(self) -> StreamError:
        return StreamError(f"the inbox {self._url} stored nothing within {_STORED_S:g} s: check its disk and the log")

    def _store_once(self, records: Sequence[Record]) -> tuple[list[Record], list[Record], PenstockError | None]:
        """Try to store records: those that are stored, those that are not, and the first error."""
        pending: list[tuple[Record, Receipt | None]] = []
        first: PenstockError | None = None
        for record in records:
            receipt = None
            if first is None:
                try:
                    receipt = self._connection.send(
                        self.topic, record.value, record.key, headers=record.headers, timestamp=record.timestamp_ms
                    )
                except PenstockError as error:
                    first = error
            pending.append((record, receipt))
        stored: list[Record] = []
        failed: list[Record] = []
        for record, receipt in pending:
            try:
                if receipt is not None:
                    receipt.result(_STORED_S)
            except (PenstockError, TimeoutError) as error:
                first = first or (error if isinstance(error, PenstockError) else self._no_answer())
                receipt = None
            (failed if receipt is None else stored).append(record)
        return stored, failed, first
