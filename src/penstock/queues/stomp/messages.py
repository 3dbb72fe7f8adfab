"""How records become STOMP messages, which have a body of bytes and headers of text.

- The value is the body; a null value has the header `penstock-null`.
- The key is the header `penstock-key`, or `penstock-key-base64` where it is not text.
- Headers are headers. Where one of them cannot be (a name that STOMP or JMS gives a meaning, or that occurs twice; a
  value that is null or not text), all are together in `penstock-headers`, as base64 of MessagePack. So no header of a
  record ever changes its priority, its expiry or its destination.
- The timestamp is `penstock-timestamp` in milliseconds, else the time at which the broker got the message.
- `penstock-id` is unique for each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

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

KEY: Final = "penstock-key"
KEY_BASE64: Final = "penstock-key-base64"
HEADERS: Final = "penstock-headers"
NULL: Final = "penstock-null"
TIMESTAMP: Final = "penstock-timestamp"
ID: Final = "penstock-id"
REASON: Final = "penstock-reason"

# fmt: off
PROTOCOL: Final = frozenset({
    "_AMQ_SCHED_DELIVERY", "AMQ_SCHEDULED_DELAY", "ack", "content-length", "destination", "destination-type",
    "expiration", "expires", "message-id", "original-destination", "originalDestination", "originalExpiration",
    "persistent", "priority", "receipt", "redelivered", "scheduledJobId", "subscription", "timestamp", "transaction",
})
"""Headers about a message, not of it: they are not given to readers."""
MEANINGFUL: Final = PROTOCOL | frozenset({
    "app-id", "browser", "client-id", "cluster-id", "content-encoding", "content-type", "correlation-id", "id",
    "host", "login", "passcode", "receipt-id", "reply-to", "requeue", "selector", "server", "session",
    "transformation", "transformation-error", "type", "user-id", "version",
})
# fmt: on
"""Header names by which a record would tell the broker to do something."""
MEANINGFUL_PREFIXES: Final = ("penstock-", "AMQ_SCHEDULED", "AMQ-", "JMS", "activemq.", "_AMQ", "_HQ", "x-", "amqp-")

_ESCAPES: Final = {ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord(":"): "\\c"}


def frame(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """A frame of STOMP 1.2, with names and values of headers escaped."""
    lines = [command, *(f"{name.translate(_ESCAPES)}:{value.translate(_ESCAPES)}" for name, value in headers), "\n"]
    return "\n".join(lines).encode() + body + b"\0"


def encode(record: NewRecord, unique: str, is_text: bool) -> tuple[list[tuple[str, str]], bytes]:
    """The headers and the body of a message. With `is_text`, JMS clients get a TextMessage for a value that is text."""
    headers = [(ID, unique)]
    body = record.value or b""
    if not (is_text and text_of(body) is not None):
        headers.append(("content-length", str(len(body))))
    if record.value is None:
        headers.append((NULL, "true"))
    if record.key is not None:
        text = text_of(record.key)
        headers.append((KEY_BASE64, packed(record.key)) if text is None else (KEY, text))
    if record.timestamp_ms is not None:
        headers.append((TIMESTAMP, str(record.timestamp_ms)))
    return headers + _headers(record.headers), body


def decode(queue: str, headers: Mapping[str, str], body: bytes) -> Record:
    key = unpacked(headers[KEY_BASE64]) if KEY_BASE64 in headers else None
    if key is None and KEY in headers:
        key = headers[KEY].encode()
    return Record(
        queue,
        0,
        offset_of(headers.get(ID) or headers.get("message-id", "")),
        key,
        None if headers.get(NULL) == "true" else body,
        _headers_in(headers),
        number_of(headers.get(TIMESTAMP)) if TIMESTAMP in headers else number_of(headers.get("timestamp")) or None,
    )


def copied(headers: Mapping[str, str], body: bytes, reason: str) -> list[tuple[str, str]]:
    """The headers with which a received message is sent elsewhere, with the reason."""
    kept = [(name, value) for name, value in headers.items() if name not in PROTOCOL and name != REASON]
    if "content-length" in headers:
        kept.append(("content-length", str(len(body))))
    return [*kept, (REASON, reason)] if reason else kept


def _headers(headers: Headers) -> list[tuple[str, str]]:
    found = plain(headers, _is_allowed)
    return [(HEADERS, packed_headers(headers))] if found is None else list(found.items())


def _is_allowed(name: str, text: str) -> bool:
    return bool(name) and name not in MEANINGFUL and not name.startswith(MEANINGFUL_PREFIXES) and "\0" not in name


def _headers_in(headers: Mapping[str, str]) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        if name in PROTOCOL or name in (KEY, KEY_BASE64, NULL, TIMESTAMP, ID):
            continue
        several = unpacked_headers(value) if name == HEADERS else None
        found += [(name, value.encode())] if several is None else several
    return tuple(found)
