"""What librdkafka is told for a producer, and what its complaints mean for a record."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.errors import ConfigError, DeliveryError, FencedError
from penstock.producing.settings import MOST_IN_FLIGHT_IN_ORDER, ProducerSettings
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.failures import not_delivered
from penstock.streams.kafka.settings import Configuration, producer_configuration

TRANSACTION_TIMEOUT_S: Final = 60.0
"""After this, the brokers abort a transaction whose producer is silent. It is tried again."""
_REQUEST_OVERHEAD_BYTES: Final = 64 << 10
_COUNT_KNOWN_S: Final = 60.0
"""How long the number of a topic's partitions is believed."""
_METADATA_TIMEOUT_S: Final = 5.0

REFUSED_FOR_GOOD: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
    }
)
"""Sending the same record again would end the same way."""
_FENCING: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, 90})
"""The last is PRODUCER_FENCED, which confluent-kafka has no name for. They count where they are fatal."""


def is_idempotent(connection: Connection, settings: ProducerSettings) -> bool:
    return connection.options.acks == "all" if settings.idempotent is None else settings.idempotent


def in_flight_of(settings: ProducerSettings, idempotent: bool) -> int:
    return settings.in_flight or (MOST_IN_FLIGHT_IN_ORDER if idempotent else 1)


def configuration(connection: Connection, settings: ProducerSettings, *, durable: bool) -> Configuration:
    """For a producer whose records librdkafka gathers into batches, keeps in order and tries again by itself."""
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
        "retry.backoff.ms": max(1, round(settings.retry.first_s * 1000)),
        "retry.backoff.max.ms": max(1, round(settings.retry.longest_s * 1000)),
        # What is in a spool is tried for as long as it takes: 0 is without limit.
        "delivery.timeout.ms": 0 if durable else round(settings.delivery_timeout_s * 1000),
        # librdkafka 2.16 can hang after the restart of a single broker when it tries to find its way by itself.
        "metadata.recovery.strategy": "none",
    }
    if settings.compression is not None:
        chosen["compression.type"] = settings.compression
    return {**chosen, **connection.options.librdkafka}


def transactional_configuration(
    connection: Connection, settings: ProducerSettings, transactional_id: str
) -> Configuration:
    timeout_ms = round(TRANSACTION_TIMEOUT_S * 1000)
    return {
        **configuration(connection, settings, durable=False),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        **connection.options.librdkafka,
    }


def make_producer(chosen: Configuration) -> Producer:
    try:
        return Producer(chosen)
    except KafkaException as error:
        raise ConfigError(f"librdkafka does not take its settings: {error}") from error


def undelivered(topic: str, error: KafkaError, given_up: str | None = None) -> DeliveryError:
    """Why a record was not delivered, and whether trying again may help."""
    told = not_delivered(topic, error, given_up)
    told.retriable = error.code() not in REFUSED_FOR_GOOD
    return told


def fenced(error: KafkaError, who: str) -> FencedError | None:
    """Whether another producer of the same name has taken over."""
    if error.code() not in _FENCING or not error.fatal():
        return None
    return FencedError(
        f"another producer with the transactional id {who!r} has been started: this one may send no more. Give each "
        "producer an id, or a spool, of its own"
    )


class PartitionCounts:
    """How many partitions topics have, asked for now and then."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def of(self, topic: str, producer: Producer) -> int:
        """Raises KafkaException when it cannot be found out."""
        count, until_s = self._known.get(topic, (0, 0.0))
        if time.monotonic() < until_s:
            return count
        described = producer.list_topics(topic, _METADATA_TIMEOUT_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        count = len(described.partitions)
        self._known[topic] = (count, time.monotonic() + _COUNT_KNOWN_S)
        return count
