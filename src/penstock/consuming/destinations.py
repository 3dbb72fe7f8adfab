"""Where a handler's results go, if not to a topic of its own stream: a queue, a channel, another stream's topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.abc import Channel, Queue, TopicStream
from penstock.channels.opening import open_channel
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    PenstockError,
    RecordTooLargeError,
    Reject,
    StreamError,
)
from penstock.model import NewRecord
from penstock.queues.opening import as_queue, open_queue, queue_name
from penstock.streams.schemes import CHANNELS, QUEUES, has_scheme, scheme_of

Destination = Queue | Channel | TopicStream

_STORED_S: Final = 120.0


class DestinationUnavailableError(PenstockError):
    """A handler's results could not be sent, for a reason that may pass and is not the record's fault."""


def as_destination(given: object) -> str | Destination | None:
    """The argument if it is a destination, or the URL of a queue or channel; None for a topic of the same stream.

    Raises UrlError for a URL of an unknown scheme, and ConfigError for an object with only parts of a queue, and for a
    lake table, whose commits hold the records of many partitions."""
    if str(getattr(given, "uri", given)).startswith(("delta:", "iceberg:")):
        raise ConfigError(
            f"to={given!r} is a lake table: rows go there by penstock.lakes.LakeSink(STREAM, TOPIC, TABLE, group=..., "
            "rows=FUNCTION)"
        )
    if isinstance(given, Channel | TopicStream):
        return given
    if isinstance(given, str) and _is_channel(given):
        return given
    return as_queue(given)


def destination_name(given: str | Destination) -> str:
    """Its name, or the last part of its URL, in the characters that the name of a topic may have."""
    return given.topic if isinstance(given, TopicStream) else queue_name(given)


def open_destination(url: str) -> Queue | Channel:
    return open_channel(url) if _is_channel(url) else open_queue(url)


def send_to(destination: Destination, records: Sequence[NewRecord]) -> None:
    """Send records, and return when all are stored, or handed to a channel that has no answers.

    Raises DestinationUnavailableError where sending the same again may succeed, and Reject for a record that the
    receiver at the other end of a channel refuses for good.
    """
    try:
        if not isinstance(destination, TopicStream):
            destination.send(records)
            return
        for receipt in destination.append(records):
            receipt.result(_STORED_S)
    except (BrokerUnavailableError, StreamError, TimeoutError, DeliveryError, RecordTooLargeError) as error:
        if isinstance(error, RecordTooLargeError) or (isinstance(error, DeliveryError) and not error.retriable):
            if isinstance(destination, Channel):
                raise Reject(f"{destination_name(destination)}: {error}") from error
            raise
        raise DestinationUnavailableError(f"{destination_name(destination)} cannot be written to: {error}") from error


def _is_channel(url: str) -> bool:
    """Whether this is the URL of a channel. A scheme that is both, `memory:`, is that of a queue."""
    scheme = scheme_of(url)
    return bool(scheme) and has_scheme(CHANNELS, scheme) and not has_scheme(QUEUES, scheme)
