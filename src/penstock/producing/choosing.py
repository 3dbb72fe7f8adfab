"""Choosing the parts of a producer, and refusing settings that exclude each other."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from penstock.abc import Buffer, Feature, Stream
from penstock.errors import ConfigError, GuaranteeError
from penstock.producing.buffers import ForeignBuffer, MemoryBuffer, NumberedBuffer
from penstock.producing.delivering import DeliveryParts, StreamDelivery, nothing_to_watch
from penstock.producing.kafka.choosing import choose_kafka, find_kafka
from penstock.producing.partitioners import BatchPartitioner
from penstock.producing.settings import ProducerSettings
from penstock.producing.spooling import Spool
from penstock.streams.connecting import open_backend, open_stream
from penstock.streams.connection import Connection
from penstock.streams.declared import provide_topic
from penstock.streams.options import ConnectOptions

SPOOL_PREFIX: Final = "spool:"


def open_for_producing(url: str, client: ConnectOptions, *, durable: bool) -> Stream:
    """Connect to the stream at a URL. A producer with a spool starts without brokers and waits for them."""
    for name in ("linger_ms", "delivery_timeout_s"):
        if name in client:
            raise ConfigError(f"client={{{name!r}: ...}}: pass {name} to the Producer itself")
    if durable and client.get("exit_when_idle_s") is None:
        return Connection(open_backend(url, client))
    return open_stream(url, **client)


def open_buffer(buffer: str | Buffer, settings: ProducerSettings) -> MemoryBuffer | Spool | ForeignBuffer:
    """Open the buffer; this locks a spool. Raises SpoolInUseError if another producer has it."""
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


def check_guarantees(stream: Stream, settings: ProducerSettings, *, durable: bool) -> None:
    """Refuse what the stream cannot do, and name what it lacks. Called before anything is opened."""
    if settings.transactional_id is not None:
        _require(stream, Feature.TRANSACTIONS, "transactional_id")
    if settings.idempotent:
        _require(stream, Feature.IDEMPOTENCE, "idempotent=True")
        if durable:
            _require(stream, Feature.TRANSACTIONS, "a spool with idempotent=True")
    if find_kafka(stream) is None:
        if settings.compression is not None:
            raise ConfigError(f"compression={settings.compression!r} cannot be used on {stream.url}: omit it")
        if settings.in_flight not in (None, 1):
            raise ConfigError(
                f"in_flight={settings.in_flight}: only one batch at a time can be kept in order on {stream.url}"
            )
        if settings.transactional_id is not None or (settings.idempotent and durable):
            raise GuaranteeError(f"the producer cannot use the transactions of {stream.url}: use a Kafka stream")


def choose_delivery(
    stream: Stream, settings: ProducerSettings, buffer: NumberedBuffer, partitioner: BatchPartitioner | None
) -> DeliveryParts:
    """How records get to the stream: by its own client where that is faster, else by `append`."""
    kafka = find_kafka(stream)
    if kafka is not None:
        return choose_kafka(kafka, settings, buffer, partitioner)
    by_name = functools.partial(provide_topic, stream)
    return DeliveryParts(StreamDelivery(stream, partitioner), 1, _nothing_to_check, by_name, nothing_to_watch)


def _nothing_to_check() -> None:
    """Nothing to check: the stream itself raises if it cannot be used."""


def _require(stream: Stream, feature: Feature, what: str) -> None:
    if feature not in stream.features:
        raise GuaranteeError(f"{what} cannot be used on {stream.url}: it has no {feature}")
