"""From what a user asks for to the parts of a producer; what cannot be had together is refused here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.abc import Buffer, Feature, Streams
from penstock.errors import ConfigError, ConnectionClosedError, GuaranteeError
from penstock.producing.buffered import ForeignBuffer, NumberedBuffer
from penstock.producing.delivering import Delivery
from penstock.producing.kafka_client import in_flight_of, is_idempotent
from penstock.producing.kafka_delivery import KafkaDelivery
from penstock.producing.kafka_transactions import TransactionDelivery
from penstock.producing.memory import MemoryBuffer
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.producing.spooling import Spool
from penstock.producing.stream_delivery import StreamDelivery
from penstock.streams.connecting import open_streams
from penstock.streams.kafka.connection import Connection
from penstock.streams.options import Options
from penstock.streams.url import KafkaUrl, parse_url
from penstock.streams.url_settings import with_settings

SPOOL_PREFIX: Final = "spool:"
_ANY_TOPIC: Final = "any"
PROGRESS_PREFIX: Final = "penstock-spool-"
"""Before a spool's id, in the names by which the brokers know it: its transactional id and its group."""


@dataclass(frozen=True, slots=True)
class Chosen:
    delivery: Delivery
    in_flight: int
    check: Callable[[], None]
    """Raises when the stream cannot be used any more."""


def open_for_producing(url: str, *, durable: bool) -> Streams:
    """The streams at a URL. With a spool, brokers that are away are no reason not to begin: they are waited for."""
    where = parse_url(url)
    if durable and isinstance(where, KafkaUrl):
        return Connection(url, where.bootstrap, with_settings(where, Options()))
    return open_streams(url)


def open_buffer(buffer: str | Buffer, settings: ProducerSettings) -> MemoryBuffer | Spool | ForeignBuffer:
    """The buffer that is asked for; a spool is locked by this. SpoolInUseError when another producer has it."""
    is_spool = isinstance(buffer, str) and buffer.startswith(SPOOL_PREFIX)
    if settings.spool_flush is not None and not is_spool:
        raise ConfigError(f"spool_flush={settings.spool_flush!r} is for buffer='spool:FOLDER'; this is {buffer!r}")
    if isinstance(buffer, MemoryBuffer | Spool):
        return buffer
    if not isinstance(buffer, str):
        return ForeignBuffer(buffer)
    if buffer == "memory":
        return MemoryBuffer(settings.buffer_records, settings.buffer_bytes)
    folder = buffer.removeprefix(SPOOL_PREFIX)
    if not is_spool or not folder:
        raise ConfigError(f"buffer={buffer!r} is neither 'memory' nor 'spool:FOLDER' nor a Buffer")
    return Spool(
        Path(folder),
        flush=settings.spool_flush or "os",
        limit_records=settings.buffer_records,
        limit_bytes=settings.buffer_bytes,
    )


def check_guarantees(streams: Streams, settings: ProducerSettings, *, durable: bool) -> None:
    """Refuse what the stream cannot do, naming what it lacks. Called before anything is opened."""
    if settings.transactional_id is not None:
        _require(streams, Feature.TRANSACTIONS, "transactional_id")
    if settings.idempotent:
        _require(streams, Feature.IDEMPOTENCE, "idempotent=True")
        if durable:
            _require(streams, Feature.TRANSACTIONS, "a spool with idempotent=True")
    if kafka_of(streams) is None:
        if settings.compression is not None:
            raise ConfigError(f"compression={settings.compression!r} cannot be used on {streams.url}: leave it away")
        if settings.in_flight not in (None, 1):
            raise ConfigError(
                f"in_flight={settings.in_flight}: only one batch at a time can be kept in order on {streams.url}"
            )
        if settings.transactional_id is not None or (settings.idempotent and durable):
            raise GuaranteeError(f"transactions of {streams.url} are not known to this producer: use a Kafka stream")


def choose_delivery(
    streams: Streams, settings: ProducerSettings, buffer: NumberedBuffer, partitioner: BatchPartitioner | None
) -> Chosen:
    connection = kafka_of(streams)
    durable = Feature.DURABLE in buffer.features
    if connection is None:
        return Chosen(StreamDelivery(streams, partitioner), 1, _nothing_to_check)
    idempotent = is_idempotent(connection, settings)
    in_flight = in_flight_of(settings, idempotent)
    spool_id: str | None = getattr(buffer, "id", None) if durable else None
    if durable and settings.idempotent and spool_id is None:
        raise GuaranteeError(
            f"idempotent=True with {type(buffer).__name__}: a durable buffer without an `id` cannot be recognised "
            "after a restart, so its records may be delivered twice; use a spool, or idempotent=None"
        )
    progress = PROGRESS_PREFIX + spool_id if spool_id is not None and idempotent else None
    transactional_id = settings.transactional_id or progress
    delivery: Delivery
    if transactional_id is not None:
        delivery = TransactionDelivery(connection, settings, partitioner, transactional_id, progress)
    else:
        delivery = KafkaDelivery(connection, settings, partitioner, durable=durable)
    return Chosen(delivery, in_flight, lambda: _check_usable(connection))


def _nothing_to_check() -> None:
    """A stream that cannot be used says so when it is."""


def _check_usable(connection: Connection) -> None:
    """A connection knows when the broker of a log has come back where it cannot be found, and raises then.

    That it was closed is no reason to stop: what is left is delivered first.
    """
    with contextlib.suppress(ConnectionClosedError, ReferenceError):
        connection.stream(_ANY_TOPIC)


def kafka_of(streams: Streams) -> Connection | None:
    """The connection to Kafka's brokers, if it is one. One to memory has no address."""
    return streams if isinstance(streams, Connection) and streams.bootstrap else None


def _require(streams: Streams, feature: Feature, what: str) -> None:
    if feature not in streams.features:
        raise GuaranteeError(f"{what} cannot be had on {streams.url}: it has no {feature}")
