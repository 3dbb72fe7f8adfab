"""Sending: records into librdkafka's buffer, and receipts that are settled when the broker has answered."""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError
from penstock.model import Headers, Receipt
from penstock.model.observing import OBSERVED
from penstock.streams.kafka.failures import not_delivered, reason_of
from penstock.streams.kafka.header_names import sendable
from penstock.streams.kafka.introduction import Introduction
from penstock.streams.kafka.settings import Configuration

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
"""How long the thread that hears of deliveries may stay inside librdkafka: the most that `close` waits for it."""
_SLICE_S: Final = 0.2
"""Waits are cut into slices, so that Ctrl-C is noticed between them."""
_HURRY_S: Final = 0.001
_FAILURES_KEPT: Final = 10_000
"""Failed receipts that are kept until `flush`, which raises those that nobody has looked at; the others are counted."""


class Sending(Protocol):
    """What a connection sends through: `Sender`, or something that keeps records more safely."""

    @property
    def unacknowledged(self) -> int: ...

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> Receipt: ...

    def flush(self, timeout: float | None) -> None: ...

    def wait_until_settled(self, timeout: float | None) -> bool: ...

    def give_up(self, reason: str) -> None: ...

    def close(self, timeout: float) -> None: ...


class Sender:
    """One producer and the thread that hears of its deliveries. Any thread may send."""

    def __init__(self, configuration: Configuration, delivery_timeout_s: float) -> None:
        try:
            self._living: Producer | None = Producer(configuration)
        except KafkaException as error:
            raise ConfigError(f"librdkafka does not take its settings: {error}") from error
        self._delivery_timeout_s = delivery_timeout_s
        self._introduction: Introduction | None = None
        self._lock = threading.Lock()
        self._open = 0
        self.sent = 0
        """Records that were taken, since the beginning."""
        self.failed = 0
        """Of those, the ones that were not acknowledged, and will not be."""
        self._failed: list[Receipt] = []
        self._failed_beyond = 0
        self._given_up: str | None = None
        self._stopping = threading.Event()
        self._hurrying = self._hurry
        self._thread = threading.Thread(target=self._hear, name="penstock-deliveries", daemon=True)
        self._thread.start()
        OBSERVED.enter(self)

    @property
    def _producer(self) -> Producer:
        if self._living is None:
            raise ConnectionClosedError("the connection is closed: connect again")
        return self._living

    @property
    def unacknowledged(self) -> int:
        """How many records have been sent and neither acknowledged nor refused."""
        return self._open

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> Receipt:
        """Take the record into the buffer. While it is full, wait for room, at most as long as a delivery may take."""
        receipt = Receipt(topic, self._hurrying)
        more: dict[str, Any] = {}
        if headers:
            more["headers"] = sendable(headers)
        if partition is not None:
            more["partition"] = partition
        if timestamp_ms is not None:
            more["timestamp"] = timestamp_ms
        on_delivery = functools.partial(self._delivered, receipt)
        with self._lock:
            self._open += 1
            self.sent += 1
            is_first = self.sent == 1
        try:
            self._produce(topic, value, key, on_delivery, more)
        except BaseException:
            with self._lock:
                self._open -= 1
                self.sent -= 1
            raise
        if is_first:
            self._introduction = Introduction(self._producer, topic)
        return receipt

    def flush(self, timeout: float | None) -> None:
        """Return once every record is acknowledged; see Connection.flush for what is raised."""
        if not self.wait_until_settled(timeout):
            raise TimeoutError(
                f"{self._open} records were not acknowledged within {timeout:g} s; they are still being tried"
            )
        self._raise_failures()

    def wait_until_settled(self, timeout: float | None) -> bool:
        """Whether every record has been acknowledged or refused by the end of `timeout` seconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self._open:
            left_s = _SLICE_S if deadline_s is None else min(_SLICE_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            self._producer.flush(left_s)
        return True

    def give_up(self, reason: str) -> None:
        """What is under way will not arrive: its receipts say so now, and why."""
        self._given_up = reason
        producer = self._living
        if producer is not None:
            producer.purge()

    def close(self, timeout: float) -> None:
        """Flush, then let go of the producer whatever happened. What is not acknowledged by then has failed."""
        try:
            self.flush(timeout)
        except TimeoutError:
            self._producer.purge()
            self._producer.flush(_SLICE_S)
            self._raise_failures()
        finally:
            OBSERVED.leave(self)
            self._stopping.set()
            self._thread.join()
            if self._introduction is not None:
                self._introduction.close()
            self._living = None  # with the last reference go librdkafka's threads and sockets

    def _raise_failures(self) -> None:
        with self._lock:
            failed, beyond = self._failed, self._failed_beyond
            self._failed, self._failed_beyond = [], 0
        unseen = [receipt for receipt in failed if not receipt.seen]
        if unseen:
            first, count = unseen[0].error, len(unseen) + beyond
            others = f" ({count - 1} more were not delivered either)" if count > 1 else ""
            raise DeliveryError(f"{first}{others}") from first

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        on_delivery: functools.partial[None],
        more: dict[str, Any],
    ) -> None:
        deadline_s = 0.0
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=on_delivery, **more)
                return
            except BufferError:
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + self._delivery_timeout_s
                if now_s >= deadline_s:
                    raise DeliveryError(
                        f"no room for a record for topic {topic!r} within {self._delivery_timeout_s:g} s: "
                        f"{self._open - 1} records wait for an acknowledgement; see that the broker runs"
                    ) from None
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                reason = reason_of(error)
                raise (not_delivered(topic, reason) if reason else DeliveryError(str(error))) from error

    def _delivered(self, receipt: Receipt, error: KafkaError | None, message: Message) -> None:
        failure = None if error is None else not_delivered(receipt.topic, error, self._given_up)
        partition, offset = message.partition(), message.offset()
        receipt.settle(-1 if partition is None else partition, -1 if offset is None else offset, failure)
        with self._lock:
            self._open -= 1
            self.failed += failure is not None
            if failure is not None and len(self._failed) < _FAILURES_KEPT:
                self._failed.append(receipt)
            elif failure is not None:
                self._failed_beyond += 1

    def _hurry(self) -> None:
        """Somebody waits for a receipt: send what there is now, instead of waiting for more to fill the batch."""
        producer = self._living
        if producer is not None:
            producer.flush(_HURRY_S)

    def _hear(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_S)
