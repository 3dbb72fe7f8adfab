"""How records become SQS messages, which have a body of text and up to ten attributes.

- A value of text that XML allows is the body. Another one is its base64, and the attribute `penstock.value` says so:
  `base64`, or `none` for a record without a value (the body is then a dash).
- Headers are attributes of their name: of text as String, others as Binary. Headers that cannot be attributes
  (several of one name, empty ones, names with other characters, more than fit) are together in one Binary attribute,
  `penstock.headers`, as MessagePack.
- The key is the Binary attribute `penstock.key`. In a FIFO queue it also chooses the message group.
- The timestamp is the attribute `penstock.timestamp` if the producer set one, else the time at which SQS got it.

Messages of other programs have their body as value, and their attributes as headers: String and Number in UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.model import Headers, NewRecord, Record
from penstock.queues.text_headers import offset_of

KEY: Final = "penstock.key"
HEADERS: Final = "penstock.headers"
VALUE: Final = "penstock.value"
TIMESTAMP: Final = "penstock.timestamp"
REASON: Final = "penstock.reason"
OURS: Final = frozenset({KEY, HEADERS, VALUE, TIMESTAMP})
MOST_ATTRIBUTES: Final = 10
LONGEST_REASON: Final = 1000
NO_VALUE: Final = "-"

_NAME: Final = re.compile(r"(?!AWS\.|Amazon\.|penstock\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
_TEXT: Final = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_decoder: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])

Attributes = dict[str, dict[str, Any]]


def encode(record: NewRecord, is_fifo: bool) -> tuple[dict[str, Any], int]:
    """An entry of SendMessageBatch without its id, and its size in bytes as SQS counts it."""
    attributes: Attributes = {}
    body, kind = _body(record.value)
    if kind:
        attributes[VALUE] = {"DataType": "String", "StringValue": kind}
    if record.key is not None:
        # An attribute cannot be empty.
        attributes[KEY] = {"DataType": "Binary", "BinaryValue": b"=" + record.key}
    if record.timestamp_ms is not None:
        attributes[TIMESTAMP] = {"DataType": "Number", "StringValue": str(record.timestamp_ms)}
    attributes |= _headers(record.headers, MOST_ATTRIBUTES - len(attributes))
    entry: dict[str, Any] = {"MessageBody": body}
    if attributes:
        entry["MessageAttributes"] = attributes
    if is_fifo:
        entry["MessageGroupId"] = group_of(record.key)
        entry["MessageDeduplicationId"] = uuid.uuid4().hex
    return entry, len(body.encode()) + sum(map(_size_bytes, attributes.items()))


def group_of(key: bytes | None) -> str:
    """The message group of a key. Messages of a group keep their order. Each message without a key has its own
    group."""
    if key is None:
        return uuid.uuid4().hex
    text = key.decode("latin-1")
    return text if _GROUP.fullmatch(text) else "sha256:" + hashlib.sha256(key).hexdigest()


def decode(queue: str, message: Mapping[str, Any]) -> Record:
    attributes: Mapping[str, Any] = message.get("MessageAttributes") or {}
    system: Mapping[str, str] = message.get("Attributes") or {}
    key = _bytes(attributes[KEY]).removeprefix(b"=") if KEY in attributes else None
    stamp = _bytes(attributes[TIMESTAMP]).decode() if TIMESTAMP in attributes else system.get("SentTimestamp", "")
    return Record(
        topic=queue,
        partition=0,
        offset=offset_of(message["MessageId"]),
        key=key,
        value=_value(message["Body"], _bytes(attributes[VALUE]) if VALUE in attributes else b""),
        headers=_headers_in(attributes),
        timestamp_ms=int(stamp) if stamp.isdecimal() else None,
    )


def copied(message: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """A received message as an entry to send. It has the reason, too, if there is room for one more attribute."""
    attributes: Attributes = {
        name: {field: given[field] for field in ("DataType", "StringValue", "BinaryValue") if field in given}
        for name, given in (message.get("MessageAttributes") or {}).items()
    }
    shown = "".join(_TEXT.findall(reason))[:LONGEST_REASON]
    if shown and len(attributes) < MOST_ATTRIBUTES:
        attributes[REASON] = {"DataType": "String", "StringValue": shown}
    return {"MessageBody": message["Body"], **({"MessageAttributes": attributes} if attributes else {})}


def _body(value: bytes | None) -> tuple[str, str]:
    if value is None:
        return NO_VALUE, "none"
    text = _text(value)
    if text is not None:
        return text, ""
    return base64.b64encode(value).decode() or NO_VALUE, "base64"


def _value(body: str, kind: bytes) -> bytes | None:
    if kind == b"none":
        return None
    if kind == b"base64":
        try:
            return base64.b64decode(body, validate=True) if body != NO_VALUE else b""
        except binascii.Error:
            pass  # an attribute of somebody else that has our name
    return body.encode()


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _headers(headers: Headers, room: int) -> Attributes:
    if not headers:
        return {}
    names = {name for name, _ in headers}
    fits = len(headers) == len(names) <= room and all(
        value and len(name) <= 256 and _NAME.fullmatch(name) for name, value in headers
    )
    if not fits:
        return {HEADERS: {"DataType": "Binary", "BinaryValue": msgspec.msgpack.encode(headers)}}
    attributes: Attributes = {}
    for name, value in headers:
        assert value is not None
        text = _text(value)
        if text is None:
            attributes[name] = {"DataType": "Binary", "BinaryValue": value}
        else:
            attributes[name] = {"DataType": "String", "StringValue": text}
    return attributes


def _headers_in(attributes: Mapping[str, Any]) -> Headers:
    headers = [(name, _bytes(given)) for name, given in attributes.items() if name not in OURS]
    if HEADERS in attributes:
        try:
            return (*_decoder.decode(_bytes(attributes[HEADERS])), *headers)
        except msgspec.MsgspecError:
            headers.append((HEADERS, _bytes(attributes[HEADERS])))
    return tuple(headers)


def _bytes(attribute: Mapping[str, Any]) -> bytes:
    if attribute["DataType"].startswith("Binary"):
        return bytes(attribute["BinaryValue"])
    return str(attribute["StringValue"]).encode()


def _size_bytes(named: tuple[str, Mapping[str, Any]]) -> int:
    name, attribute = named
    return len(name) + len(attribute["DataType"]) + len(_bytes(attribute))
