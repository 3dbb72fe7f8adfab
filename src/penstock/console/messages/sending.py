"""Sending by hand: a new message, or a replay of one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.console.link import DELIVERY_S, Link
from penstock.console.messages.showing import UNDECODABLE
from penstock.console.views import Encoding
from penstock.errors import BrokerUnavailableError, ConfigError, StreamError, UnknownTopicError
from penstock.model import UNKNOWN_HEADER, Headers, NewRecord, Pointer, Record

REPLAYED_HEADER: Final = "penstock-replayed-from"
"""The header that names the replayed message: orders-0@42."""
LARGEST_TEXT: Final = 32 * 1024 * 1024


def encoded(text: str | None, encoding: Encoding, what: str) -> bytes | None:
    """The bytes that a person has entered. Raises ConfigError with what is wrong."""
    if text is None:
        return None
    if len(text) > LARGEST_TEXT:
        raise ConfigError(f"the {what} has {len(text):,} characters; the limit is {LARGEST_TEXT:,}")
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode("".join(text.split()), validate=True)
        if encoding not in ("text", "json"):
            raise ConfigError(f"{encoding!r} is not an encoding: use text, json, hex or base64")
        data = text.encode()
        if encoding == "json":
            msgspec.json.decode(data)
        return data
    except (*UNDECODABLE, binascii.Error) as error:
        raise ConfigError(f"the {what} is not valid {encoding}: {error}") from None


def send(link: Link, record: NewRecord) -> tuple[int, Pointer]:
    """Send it, and return its partition and offset once it is stored. The topic must exist."""
    connection = link.connection()
    there = link.topics().partitions_of(record.topic)
    if record.partition is not None and record.partition not in there:
        raise UnknownTopicError(f"topic {record.topic!r} has no partition {record.partition}: it has {len(there)}")
    receipt = connection.send_record(record)
    try:
        place = receipt.result(DELIVERY_S + 1.0)
    except TimeoutError as error:
        link.look_again()
        raise BrokerUnavailableError(f"{error}: check whether it has arrived before you send it again") from error
    return place.partition, place.offset


def new_record(
    topic: str,
    key: str | None,
    value: str | None,
    headers: Sequence[tuple[str, str]],
    partition: int | None,
    encoding: Encoding,
    key_encoding: Encoding,
) -> NewRecord:
    """A record from what a person has entered."""
    if any(not name for name, _ in headers):
        raise ConfigError("a header has no name")
    return NewRecord(
        topic,
        encoded(value, encoding, "value"),
        encoded(key, key_encoding, "key"),
        tuple((name, encoded(content, "text", f"header {name!r}")) for name, content in headers),
        partition=partition,
    )


def replayed(record: Record, to: str | None) -> NewRecord:
    """A copy of the record with its key, value and headers, and a header that says where it comes from.

    In its own topic it goes to its own partition. Its timestamp is now, or it might expire before it is read. A header
    name that is not UTF-8 is sent as it is shown.
    """
    if any(name == UNKNOWN_HEADER for name, _ in record.headers):
        raise StreamError(
            f"{record.place} cannot be replayed: several of its header names are not UTF-8, and would be lost"
        )
    origin = f"{record.topic}-{record.partition}@{record.offset}".encode()
    headers: Headers = tuple((name, content) for name, content in record.headers if name != REPLAYED_HEADER)
    is_home = to is None or to == record.topic
    return NewRecord(
        to or record.topic,
        record.value,
        record.key,
        (*headers, (REPLAYED_HEADER, origin)),
        partition=record.partition if is_home else None,
    )
