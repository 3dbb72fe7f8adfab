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

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.model import Headers, NewRecord, Record

KEY: Final = "penstock-key"
KEY_BASE64: Final = "penstock-key-base64"
HEADERS: Final = "penstock-headers"
NULL: Final = "penstock-null"
TIMESTAMP: Final = "penstock-timestamp"
ID: Final = "penstock-id"
REASON: Final = "penstock-reason"

# fmt: off
PROTOCOL: Final = frozenset({
    "ack", "content-length", "destination", "expires", "message-id", "original-destination", "originalDestination",
    "originalExpiration", "persistent", "priority", "receipt", "redelivered", "scheduledJobId", "subscription",
    "timestamp",
})
"""Headers about a message, not of it: they are not given to readers."""
MEANINGFUL: Final = PROTOCOL | frozenset({
    "app-id", "browser", "client-id", "cluster-id", "content-encoding", "content-type", "correlation-id",
    "destination-type", "expiration", "id", "host", "login", "passcode", "receipt-id", "reply-to", "requeue",
    "selector", "server", "session", "transaction", "transformation", "transformation-error", "type", "user-id",
    "version",
})
# fmt: on
"""Header names by which a record would tell the broker to do something."""
MEANINGFUL_PREFIXES: Final = ("penstock-", "AMQ_SCHEDULED", "AMQ-", "JMS", "activemq.", "_AMQ", "_HQ", "x-", "amqp-")

_ESCAPES: Final = {ord("\\"): "\\\\", ord("\n"): "\\n", ord("\r"): "\\r", ord(":"): "\\c"}
_decoder: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])


def frame(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """A frame of STOMP 1.2, with names and values of headers escaped."""
    lines = [command, *(f"{name.translate(_ESCAPES)}:{value.translate(_ESCAPES)}" for name, value in headers), "\n"]
    return "\n".join(lines).encode() + body + b"\0"


def encode(record: NewRecord, unique: str, is_text: bool) -> tuple[list[tuple[str, str]], bytes]:
    """The headers and the body of a message. `is_text`: JMS clients get a TextMessage where the value is text."""
    headers = [(ID, unique)]
    body = record.value or b""
    if not (is_text and _text(body) is not None):
        headers.append(("content-length", str(len(body))))
    if record.value is None:
        headers.append((NULL, "true"))
    if record.key is not None:
        text = _text(record.key)
        headers.append((KEY_BASE64, _packed(record.key)) if text is None else (KEY, text))
    if record.timestamp_ms is not None:
        headers.append((TIMESTAMP, str(record.timestamp_ms)))
    return headers + _headers(record.headers), body


def decode(queue: str, headers: Mapping[str, str], body: bytes) -> Record:
    key = _unpacked(headers[KEY_BASE64]) if KEY_BASE64 in headers else None
    if key is None and KEY in headers:
        key = headers[KEY].encode()
    stamp = headers.get(TIMESTAMP) or headers.get("timestamp", "")
    return Record(
        queue,
        0,
        offset_of(headers.get(ID) or headers.get("message-id", "")),
        key,
        None if headers.get(NULL) == "true" else body,
        _headers_in(headers),
        int(stamp) if stamp.isdecimal() and stamp != "0" else None,
    )


def offset_of(unique: str) -> int:
    """A number of 63 bits for a message, the same at each delivery."""
    return int.from_bytes(hashlib.blake2b(unique.encode(), digest_size=8).digest()) >> 1


def copied(headers: Mapping[str, str], body: bytes, reason: str) -> list[tuple[str, str]]:
    """The headers of a received message to send it elsewhere, with the reason."""
    kept = [(name, value) for name, value in headers.items() if name not in PROTOCOL and name != REASON]
    if "content-length" in headers:
        kept.append(("content-length", str(len(body))))
    return [*kept, (REASON, reason)] if reason else kept


def _headers(headers: Headers) -> list[tuple[str, str]]:
    plain: dict[str, str] = {}
    for name, value in headers:
        text = None if value is None else _text(value)
        if text is None or not name or name in plain or _has_meaning(name):
            return [(HEADERS, _packed(msgspec.msgpack.encode(headers)))]
        plain[name] = text
    return list(plain.items())


def _has_meaning(name: str) -> bool:
    return name in MEANINGFUL or name.startswith(MEANINGFUL_PREFIXES) or "\0" in name


def _headers_in(headers: Mapping[str, str]) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        if name in PROTOCOL or name in (KEY, KEY_BASE64, NULL, TIMESTAMP, ID):
            continue
        packed = _unpacked(value) if name == HEADERS else None
        if packed is not None:
            try:
                found += _decoder.decode(packed)
                continue
            except msgspec.MsgspecError:
                pass  # a header of somebody else that has our name
        found.append((name, value.encode()))
    return tuple(found)


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
