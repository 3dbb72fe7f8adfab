"""Chooses how a producer delivers to Kafka."""

from __future__ import annotations

import contextlib
from typing import Final

from penstock.abc import Feature, Stream
from penstock.errors import ConnectionClosedError, GuaranteeError
from penstock.producing.buffers import NumberedBuffer
from penstock.producing.delivering import Delivery, DeliveryParts, nothing_to_watch
from penstock.producing.kafka.client import in_flight_of, is_idempotent
from penstock.producing.kafka.delivery import KafkaDelivery
from penstock.producing.kafka.transactions import TransactionDelivery
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.streams.capability import capability
from penstock.streams.declared import Provide
from penstock.streams.kafka.administration.reaching import new_admin
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.stream import KafkaStream

_PROVIDE_S: Final = 3.0
"""How long one request for a topic may take; the pump repeats it, unless it must stop."""
PROGRESS_PREFIX: Final = "penstock-spool-"
"""The prefix of a spool's transactional id and group."""


def find_kafka(stream: Stream) -> KafkaStream | None:
    """The Kafka backend of a connection; None for other streams."""
    return capability(stream, KafkaStream)


def choose_kafka(
    kafka: KafkaStream, settings: ProducerSettings, buffer: NumberedBuffer, partitioner: BatchPartitioner | None
) -> DeliveryParts:
    """Deliver in transactions if asked to, or if a spool must be recognised after a restart; else record by record."""
    durable = Feature.DURABLE in buffer.features
    delivery: Delivery
    look = nothing_to_watch  # a transactional delivery watches for stalls itself
    idempotent = is_idempotent(kafka, settings)
    in_flight = in_flight_of(settings, idempotent)
    spool_id: str | None = getattr(buffer, "id", None) if durable else None
    if durable and settings.idempotent and spool_id is None:
        raise GuaranteeError(
            f"idempotent=True with {type(buffer).__name__}: a durable buffer without an `id` cannot be recognised "
            "after a restart, so its records may be delivered twice; use a spool, or idempotent=None"
        )
    progress = PROGRESS_PREFIX + spool_id if spool_id is not None and idempotent else None
    transactional_id = settings.transactional_id or progress
    if transactional_id is not None:
        delivery = TransactionDelivery(kafka, settings, partitioner, transactional_id, progress)
    else:
        delivery = KafkaDelivery(kafka, settings, partitioner, durable=durable)
        look = delivery.stalls.look
    return DeliveryParts(delivery, in_flight, lambda: _check_usable(kafka), _provider_for(kafka), look)


def _provider_for(kafka: KafkaStream) -> Provide:
    """A function that creates topics even while the connection is being closed, which delivers everything first."""
    bootstrap, options = kafka.bootstrap, kafka.options

    def provide(name: str, partitions: int) -> int:
        topics = TopicAdministration(new_admin(bootstrap, options), _PROVIDE_S)
        return topics.provide(name, partitions, {})

    return provide


def _check_usable(kafka: KafkaStream) -> None:
    """Raise if the broker of a log came back at an address that this connection cannot reach.

    A closed connection does not stop delivery: what is left is delivered first.
    """
    with contextlib.suppress(ConnectionClosedError):
        kafka.check_usable()
