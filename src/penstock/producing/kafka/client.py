"""The librdkafka configuration of producers, and the numbers of partitions of their topics."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaException

from penstock.producing.settings import MOST_IN_FLIGHT_IN_ORDER, ProducerSettings
from penstock.streams.kafka.producing.producer import KafkaProducer
from penstock.streams.kafka.settings import Configuration, producer_configuration
from penstock.streams.kafka.stream import KafkaStream

TRANSACTION_TIMEOUT_S: Final = 60.0
"""After this time the brokers abort the transaction of a silent producer. It is retried."""
_REQUEST_OVERHEAD_BYTES: Final = 64 << 10
_COUNT_KNOWN_S: Final = 60.0
"""How long the number of a topic's partitions is cached."""
_METADATA_TIMEOUT_S: Final = 5.0


def is_idempotent(connection: KafkaStream, settings: ProducerSettings) -> bool:
    return connection.options.acks == "all" if settings.idempotent is None else settings.idempotent


def in_flight_of(settings: ProducerSettings, idempotent: bool) -> int:
    return settings.in_flight or (MOST_IN_FLIGHT_IN_ORDER if idempotent else 1)


def configuration(connection: KafkaStream, settings: ProducerSettings, *, durable: bool) -> Configuration:
    """librdkafka's configuration for a producer whose batching, order and retries it handles itself."""
    idempotent = is_idempotent(connection, settings)
    largest = max(settings.max_request_bytes, settings.batch_bytes) + _REQUEST_OVERHEAD_BYTES
    chosen: Configuration = {
        **producer_configuration(connection.bootstrap, connection.options),
        "enable.idempotence": idempotent,
        "max.in.flight.requests.per.connection": in_flight_of(settings, idempotent),
        "linger.ms": settings.linger_ms,
        "batch.size": settings.batch_bytes,
        "batch.num.messages": settings.batch_records,
        "message.max.bytes": largest,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "retry.backoff.ms": max(1, round(min(settings.retry.first_delay_s, settings.retry.max_delay_s) * 1000)),
        "retry.backoff.max.ms": max(1, round(settings.retry.max_delay_s * 1000)),
        # A record in a spool is retried without limit: 0.
        "delivery.timeout.ms": 0 if durable else round(settings.delivery_timeout_s * 1000),
        # librdkafka 2.16 can hang after the restart of a single broker if it rebootstraps by itself.
        "metadata.recovery.strategy": "none",
    }
    if settings.compression is not None:
        chosen["compression.type"] = settings.compression
    return {**chosen, **connection.options.librdkafka}


def transactional_configuration(
    connection: KafkaStream, settings: ProducerSettings, transactional_id: str
) -> Configuration:
    timeout_ms = round(TRANSACTION_TIMEOUT_S * 1000)
    return {
        **configuration(connection, settings, durable=False),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        **connection.options.librdkafka,
    }


class PartitionCounts:
    """The numbers of partitions of topics, cached for a while."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def of(self, topic: str, producer: KafkaProducer) -> int:
        """The number of partitions of the topic, asked for at most once in a while. KafkaException if the broker
        cannot tell."""
        count, until_s = self._known.get(topic, (0, 0.0))
        if time.monotonic() < until_s:
            return count
        described = producer.client.list_topics(topic, _METADATA_TIMEOUT_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        count = len(described.partitions)
        self._known[topic] = (count, time.monotonic() + _COUNT_KNOWN_S)
        return count
