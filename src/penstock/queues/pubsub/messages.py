"""How records become Pub/Sub messages, which have data, attributes of text, and an ordering key.

- The value is the data. As a message must not be empty, a null or empty value has the attribute `penstock-value`.
- The key is the attribute `penstock-key`, or `penstock-key-base64` where it is not text. With `ordering`, the ordering
  key is the key, or its hash where the key is not text or too long; the attribute is there only if they differ.
- Headers are attributes. Where one of them cannot be (a name that occurs twice, is empty or reserved; a value that is
  null, not text or too long), all are in `penstock-headers-0`, `-1` and so on, as base64 of MessagePack.
- The timestamp is the attribute `penstock-timestamp` in milliseconds, else the time at which it was published.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import ConfigError, RecordTooLargeError
from penstock.model import Headers, NewRecord, Record
from penstock.queues.text_headers import (
    number_of,
    offset_of,
    packed,
    packed_headers,
    plain,
    text_of,
    unpacked,
    unpacked_headers,
)

OURS: Final = "penstock-"
KEY: Final = "penstock-key"
KEY_BASE64: Final = "penstock-key-base64"
VALUE: Final = "penstock-value"
HEADERS: Final = "penstock-headers-"
TIMESTAMP: Final = "penstock-timestamp"
REASON: Final = "penstock-reason"
DEAD_LETTER_SOURCE: Final = "CloudPubSubDeadLetterSourceSubscription"
"""The attribute by which Pub/Sub names the subscription that gave a message up."""

MOST_ATTRIBUTES: Final = 100
LONGEST_NAME_BYTES: Final = 256
LONGEST_VALUE_BYTES: Final = 1024
LONGEST_ORDERING_KEY_BYTES: Final = 1024
LARGEST_BYTES: Final = 10_000_000
"""The limit of a publish request, and so of a message."""
_REQUEST_BYTES: Final = 1_000
"""The part of a request that is not its messages."""


def encode(record: NewRecord, message: Any, topic: str, has_ordering: bool) -> Any:
    """Fill an empty `PubsubMessage`."""
    attributes: dict[str, str] = {}
    message.data = record.value or b""
    if not record.value:
        attributes[VALUE] = "null" if record.value is None else "empty"
    if has_ordering and record.key:
        message.ordering_key = ordering_key(record.key)
    if record.key is not None and message.ordering_key.encode() != record.key:
        text = text_of(record.key)
        attributes |= {KEY_BASE64: packed(record.key)} if text is None else {KEY: text}
    elif record.key == b"":
        attributes[KEY] = ""
    if record.timestamp_ms is not None:
        attributes[TIMESTAMP] = str(record.timestamp_ms)
    attributes |= _attributes(record.headers)
    for name in (KEY, KEY_BASE64):
        if len(attributes.get(name, "").encode()) > LONGEST_VALUE_BYTES:
            raise ConfigError(
                f"a key of {len(record.key or b'')} bytes is too long for Pub/Sub, whose attributes hold "
                f"{LONGEST_VALUE_BYTES} bytes: use a shorter key, such as its hash"
            )
    if len(attributes) > MOST_ATTRIBUTES:
        raise ConfigError(
            f"a record for {topic} needs {len(attributes)} attributes, and Pub/Sub allows {MOST_ATTRIBUTES}: send "
            "fewer or shorter headers, or put them into the value"
        )
    message.attributes.update(attributes)
    size_bytes = message.ByteSize()
    if size_bytes + _REQUEST_BYTES > LARGEST_BYTES:
        raise RecordTooLargeError(
            f"a record for {topic} has {size_bytes} bytes with its attributes, and Pub/Sub takes {LARGEST_BYTES} in a "
            "request: split it, or store it elsewhere and send where it is"
        )
    return message


def ordering_key(key: bytes) -> str:
    text = text_of(key)
    if text is None or len(key) > LONGEST_ORDERING_KEY_BYTES:
        return "sha256:" + hashlib.sha256(key).hexdigest()
    return text


def decode(queue: str, message: Any) -> Record:
    attributes: Mapping[str, str] = message.attributes
    key = unpacked(attributes[KEY_BASE64]) if KEY_BASE64 in attributes else None
    if key is None:
        key = attributes[KEY].encode() if KEY in attributes else message.ordering_key.encode() or None
    stamp_ms = number_of(attributes.get(TIMESTAMP))
    if stamp_ms is None and message.HasField("publish_time"):
        stamp_ms = message.publish_time.ToMilliseconds()
    return Record(
        queue,
        0,
        offset_of(message.message_id),
        key,
        None if attributes.get(VALUE) == "null" else message.data,
        _headers_in(attributes),
        stamp_ms,
    )


def copied(received: Any, message: Any, subscription: str, reason: str) -> Any:
    """Fill a message for the dead letter topic, with what Pub/Sub itself adds there, and the reason."""
    message.data = received.data
    message.ordering_key = received.ordering_key
    message.attributes.update(received.attributes)
    added = {DEAD_LETTER_SOURCE: subscription.rpartition("/")[2], REASON: _cut(reason)}
    for name, value in added.items():
        if value and (name in message.attributes or len(message.attributes) < MOST_ATTRIBUTES):
            message.attributes[name] = value
    return message


def batches(messages: list[Any], most: int) -> list[list[Any]]:
    """The messages in their order, divided into as many as fit into one request."""
    found: list[list[Any]] = [[]]
    size_bytes = _REQUEST_BYTES
    for message in messages:
        message_bytes = message.ByteSize() + 8
        if found[-1] and (len(found[-1]) == most or size_bytes + message_bytes > LARGEST_BYTES):
            found.append([])
            size_bytes = _REQUEST_BYTES
        found[-1].append(message)
        size_bytes += message_bytes
    return found if messages else []


def _attributes(headers: Headers) -> dict[str, str]:
    found = plain(headers, _is_allowed)
    if found is None:
        text = packed_headers(headers)
        parts = range(0, len(text), LONGEST_VALUE_BYTES)
        found = {f"{HEADERS}{number}": text[start : start + LONGEST_VALUE_BYTES] for number, start in enumerate(parts)}
    return found


def _is_allowed(name: str, text: str) -> bool:
    size_bytes = len(name.encode())
    is_reserved = name.startswith((OURS, "goog"))
    return 0 < size_bytes <= LONGEST_NAME_BYTES and not is_reserved and len(text.encode()) <= LONGEST_VALUE_BYTES


def _headers_in(attributes: Mapping[str, str]) -> Headers:
    parts = []
    for number in itertools.count():
        part = attributes.get(f"{HEADERS}{number}")
        if part is None:
            break
        parts.append(part)
    several = unpacked_headers("".join(parts)) if parts else ()
    ours = (KEY, KEY_BASE64, VALUE, TIMESTAMP)
    others = (
        (name, value.encode())
        for name, value in attributes.items()
        if name not in ours and not (several and name.startswith(HEADERS))
    )
    return (*(several or ()), *others)


def _cut(text: str) -> str:
    return text.encode()[:LONGEST_VALUE_BYTES].decode(errors="ignore")
