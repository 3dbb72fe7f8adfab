"""Sending records with receipts, which are settled when the broker has answered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from penstock.errors import ConnectionClosedError, DeliveryError
from penstock.model import NewRecord, Receipt
from penstock.model.observing import OBSERVED
from penstock.streams.kafka.failures import not_delivered
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.producing.producer import KafkaProducer
from penstock.streams.kafka.producing.stalls import StallWatch
from penstock.streams.kafka.settings import Configuration
from penstock.streams.sending import CountingSender

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
"""How long the delivery thread may stay inside librdkafka, and so the longest that `close` waits for it."""
_SLICE_S: Final = 0.2
"""Waits are cut into slices, so that Ctrl-C works."""
_HURRY_S: Final = 0.001
_LOOK_AGAIN_S: Final = 0.01
"""How often `send_async` checks for room."""


class KafkaSender(CountingSender):
    """`abc.Sender` by one producer, and a thread that reports its deliveries."""

    def __init__(
        self, configuration: Configuration, delivery_timeout_s: float, stalls: StallWatch | None = None
    ) -> None:
        """`stalls` watches the progress, and logs if records are not acknowledged."""
        super().__init__()
        self._stalls = stalls
        self._producer = KafkaProducer(configuration, delivery_timeout_s)
        self._given_up: str | None = None
        self._stopping = threading.Event()
        self._hurrying = self._hurry
        self._thread = threading.Thread(target=self._hear, name="penstock-deliveries", daemon=True)
        self._thread.start()
        OBSERVED.enter(self)

    def send(self, record: NewRecord, *, wait: bool = True) -> Receipt:
        """Queue the record. If the queue is full, wait for up to the delivery timeout; without `wait`, raise
        BufferError."""
        topic = record.topic
        receipt = Receipt(topic, self._hurrying)
        on_delivery = functools.partial(self._delivered, receipt)
        with self._lock:
            self._open += 1
            self.sent += 1
            is_first = self.sent == 1
        try:
            self._producer.produce(
                topic,
                record.value,
                record.key,
                -1 if record.partition is None else record.partition,
                on_delivery,
                record.timestamp_ms or 0,
                sendable(record.headers) if record.headers else None,
                wait=wait,
            )
        except BaseException:
            with self._lock:
                self._open -= 1
                self.sent -= 1
            raise
        if is_first:
            self._producer.warm_up(topic)
        return receipt

    def send_all(self, records: Sequence[NewRecord]) -> list[Receipt]:
        """Like `send`, for many records with less work for each. The receipt of one that is refused has the error."""
        receipts = [Receipt(record.topic, self._hurrying) for record in records]
        count = len(receipts)
        with self._lock:
            is_first = not self.sent
            self._open += count
            self.sent += count
        taken = refused = 0
        produce, delivered = self._producer.try_produce, self._delivered
        try:
            for record, receipt in zip(records, receipts, strict=True):
                partition = -1 if record.partition is None else record.partition
                headers = sendable(record.headers) if record.headers else None
                timestamp_ms = record.timestamp_ms or 0
                on_delivery = functools.partial(delivered, receipt)
                try:
                    produce(record.topic, record.value, record.key, partition, on_delivery, None, timestamp_ms, headers)
                except (BufferError, KafkaException):
                    try:
                        self._producer.produce(
                            record.topic, record.value, record.key, partition, on_delivery, timestamp_ms, headers
                        )
                    except DeliveryError as error:
                        receipt.settle(-1, -1, error)
                        refused += 1
                taken += 1
        finally:
            if lost := refused + count - taken:
                with self._lock:
                    self._open -= lost
                    self.sent -= lost
        if is_first and taken > refused:
            self._producer.warm_up(records[0].topic)
        return receipts

    async def send_async(self, record: NewRecord) -> Receipt:
        deadline_s = time.monotonic() + self._producer.timeout_s
        while True:  # ends at the deadline
            try:
                return self.send(record, wait=False)
            except BufferError:
                if time.monotonic() >= deadline_s:
                    raise self._producer.no_room(record.topic) from None
            await asyncio.sleep(_LOOK_AGAIN_S)

    def wait_until_settled(self, timeout_s: float | None) -> bool:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._open:
            left_s = _SLICE_S if deadline_s is None else min(_SLICE_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            self._producer.flush(left_s)
        return True

    def give_up(self, reason: str) -> None:
        """Fail all records that are in flight, for this reason."""
        self._given_up = reason
        self._producer.purge()

    def close(self, timeout_s: float) -> None:
        try:
            self.flush(timeout_s)
        except TimeoutError:
            self._producer.purge()
            self._producer.flush(_SLICE_S)
            self._failures.raise_first()
        finally:
            OBSERVED.leave(self)
            self._stopping.set()
            self._thread.join()
            self._producer.close()

    def _delivered(self, receipt: Receipt, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        failure = None
        if error is not None:
            why_silent = None if self._stalls is None else self._stalls.why
            failure = not_delivered(receipt.topic, error, self._given_up, why_silent)
        receipt.settle(-1 if partition is None else partition, -1 if offset is None else offset, failure)
        if failure is None:  # what `_settled` does, without the call: this runs for each record
            with self._lock:
                self._open -= 1
        else:
            self._settled(receipt, is_failure=True)

    def _hurry(self) -> None:
        """Send what is queued now, without lingering, because a caller waits for a receipt."""
        with contextlib.suppress(ConnectionClosedError):
            self._producer.flush(_HURRY_S)

    def _hear(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_S)
            if self._stalls is not None:
                self._stalls.look(self._open, self.sent - self._open - self.failed)
