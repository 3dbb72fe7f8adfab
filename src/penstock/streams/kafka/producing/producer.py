"""A librdkafka producer without transactions, on which every sender to Kafka is built."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError, PenstockError
from penstock.streams.kafka.failures import not_taken
from penstock.streams.kafka.settings import Configuration

_ROOM_S: Final = 0.1
"""How long one wait for room in the queue takes."""
_WARM_UP_S: Final = 0.5
"""How long a broker may take to answer. After longer, a warm-up gains nothing."""

OnDelivery = Callable[[KafkaError | None, Message], None]
SendableHeaders = list[tuple[str, str | bytes | None]]
Row = tuple[str, bytes | None, bytes | None, int, None, None, int, SendableHeaders | None]
"""A record as positional arguments of `try_produce`: topic, value, key, partition (-1: that of its key), None, None,
timestamp in milliseconds (0: now) and headers."""


class KafkaProducer:
    """Thread-safe. Deliveries are reported inside `poll` and `flush`, which must therefore be called."""

    def __init__(self, configuration: Configuration, timeout_s: float) -> None:
        """`timeout_s` is how long `produce` waits for room in librdkafka's queue."""
        try:
            self._living: Producer | None = Producer(configuration)
        except KafkaException as error:
            raise ConfigError(f"librdkafka rejected the configuration: {error}") from error
        self.timeout_s = timeout_s
        self.try_produce: Callable[..., None] = self._living.produce
        """librdkafka's own function, for hot loops. Raises BufferError if the queue is full, else KafkaException."""
        self._warm_up: threading.Thread | None = None

    @property
    def client(self) -> Producer:
        if self._living is None:
            raise self._is_closed()
        return self._living

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp_ms: int = 0,
        headers: SendableHeaders | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Queue a record. If the queue is full, wait for room; without `wait`, raise BufferError."""
        deadline_s = 0.0
        while True:  # ends at the deadline
            try:
                self.try_produce(topic, value, key, partition, on_delivery, None, timestamp_ms, headers)
                return
            except BufferError:
                if not wait:
                    raise
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + self.timeout_s
                if now_s >= deadline_s:
                    raise self.no_room(topic) from None
                self.client.poll(_ROOM_S)
            except KafkaException as error:
                raise self._not_taken(topic, error) from error

    def poll(self, timeout_s: float) -> None:
        """Report deliveries, after waiting for the first one."""
        self.client.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Send what there is now, and report deliveries. Returns how many records are left."""
        return self.client.flush(timeout_s)

    def purge(self) -> None:
        """Give up every record that is not acknowledged, and report it as failed."""
        if self._living is not None:
            self._living.purge()

    def warm_up(self, topic: str) -> None:
        """Warm up the producer, once, in the background."""
        if self._warm_up is None:
            self._warm_up = warm_up_thread(self.client, topic)

    def close(self) -> None:
        """Close it without flushing."""
        if self._warm_up is not None:
            self._warm_up.join()
        self.try_produce = self._refuse
        self._living = None  # with the last reference go librdkafka's threads and sockets

    def no_room(self, topic: str) -> PenstockError:
        return DeliveryError(
            f"no room for a record for topic {topic!r} within {self.timeout_s:g} s: {len(self.client)} records wait "
            "for an acknowledgement; check that the broker runs"
        )

    def _not_taken(self, topic: str, error: KafkaException) -> PenstockError:
        return not_taken(topic, error)

    def _is_closed(self) -> PenstockError:
        return ConnectionClosedError("the connection is closed: connect again")

    def _refuse(self, *record: Any) -> None:
        raise self._is_closed()


def warm_up_thread(producer: Producer, topic: str) -> threading.Thread:
    """Start a thread that warms up a producer. Without it, its first records are half a second late.

    An idempotent producer needs an id from a broker before it may send. librdkafka (2.16) requests it as soon as it
    knows the brokers. It learns them on a connection that it then closes, has no other yet, and tries again after half
    a second, or with the next answer about the brokers. The thread requests that answer, for a topic of the producer.
    """
    thread = threading.Thread(target=_warm_up, args=(producer, topic), name="penstock-warm-up", daemon=True)
    thread.start()
    return thread


def _warm_up(producer: Producer, topic: str) -> None:
    with contextlib.suppress(KafkaException):  # the records that are sent report a broker that does not answer
        for _ in range(2):  # over the first connection, and over the one that stays
            producer.list_topics(topic, timeout=_WARM_UP_S)
