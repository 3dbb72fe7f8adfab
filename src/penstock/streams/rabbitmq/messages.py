"""Records as AMQP 1.0 messages, which is what programs exchange on RabbitMQ streams, and messages as records.

The body is the value, one section of data. Headers are application properties: text if they are UTF-8, else binary. The
key is the property `penstock-key`, a null value has the property `penstock-null`, a producer's own timestamp is
`penstock-timestamp`, as in our messages in RabbitMQ's queues. Properties are a map, so headers of which two have the
same name are all together `penstock-headers`, in JSON with base64. The timestamp of a record is when the server stored
it, so that positions at a time are exact. The message id is unique for each record.

Messages of other programs: data or text in the body is the value, and any other body its JSON. Application properties
are headers, and so are the standard properties, such as `amqp-correlation-id`. A message that is not AMQP 1.0 is the
value of a record as it is.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from penstock.model import Headers, NewRecord, Record
from penstock.streams.adapting.amqp_values import (
    Described,
    NotAmqpError,
    decode,
    encode_binary,
    encode_map,
    encode_text,
    encode_text_or_binary,
)

KEY: Final = "penstock-key"
NULL: Final = "penstock-null"
TIMESTAMP: Final = "penstock-timestamp"
HEADERS: Final = "penstock-headers"
_OURS: Final = frozenset({KEY, NULL, HEADERS})
_ID_PREFIX: Final = "penstock-"
_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_DATA: Final = b"\x00\x53\x75"
_PROPERTY_NAMES: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
_OURS_START: Final = b"\x01\xa1"
"""How the properties of our messages go on after their size: one value, a short text."""
_TRUE: Final = b"\x41"
_NOTHING: Final = b"\x40"


def message_of(record: NewRecord, producer: bytes, number: int) -> bytes:
    """The message of a record. `producer` and `number` together are used once, so no two messages are equal."""
    value = record.value
    id = b"penstock-%b-%d" % (producer, number)
    named = b"%b\xc0%c\x01\xa1%c%b" % (_PROPERTIES, len(id) + 3, len(id), id)
    if record.key is None and value is not None and not record.headers and record.timestamp_ms is None:
        return b"%b%b%b" % (named, _DATA, encode_binary(value))
    return b"%b%b%b%b%b" % (
        named,
        _APPLICATION_PROPERTIES,
        encode_map(_properties_of(record)),
        _DATA,
        encode_binary(value or b""),
    )


def _properties_of(record: NewRecord) -> list[bytes]:
    parts: list[bytes] = []
    if record.key is not None:
        parts += (_ENCODED_KEY, encode_text_or_binary(record.key))
    if record.value is None:
        parts += (_ENCODED_NULL, _TRUE)
    given = record.headers
    if record.timestamp_ms is not None and all(name != TIMESTAMP for name, _ in given):
        given = (*given, (TIMESTAMP, b"%d" % record.timestamp_ms))
    if not given:
        return parts
    if _fit(given):
        for name, content in given:
            encoded = _NOTHING if content is None else encode_text_or_binary(content)
            parts += (encode_text(name), encoded)
    else:
        listed = [[name, None if content is None else base64.b64encode(content).decode()] for name, content in given]
        parts += (_ENCODED_HEADERS, encode_text(json.dumps(listed)))
    return parts


_ENCODED_KEY: Final = encode_text(KEY)
_ENCODED_NULL: Final = encode_text(NULL)
_ENCODED_HEADERS: Final = encode_text(HEADERS)


def _fit(headers: Headers) -> bool:
    """Whether headers can be a map, from which they come back as they were."""
    names = {name for name, _ in headers}
    return len(names) == len(headers) and not names & _OURS and not any(name.startswith("amqp-") for name in names)


def record_of(topic: str, partition: int, offset: int, time_ms: int, message: bytes) -> Record:
    """The record of a message."""
    start = _after_our_id(message)
    found = _short(message, start)
    if found is None:
        try:
            found = _content(_sections(message, start))
        except NotAmqpError:
            found = None, message, ()
    return Record(topic, partition, offset, *found, time_ms)


_OUR_PROPERTIES: Final = _PROPERTIES + b"\xc0"
_SHORT_MAP: Final = _APPLICATION_PROPERTIES + b"\xc1"
_SHORT_DATA: Final = _DATA + b"\xa0"
_LONG_DATA: Final = _DATA + b"\xb0"

_Content = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


def _after_our_id(message: bytes) -> int:
    """Where a message goes on after properties that are nothing but an id of ours; 0 if it does not begin so."""
    if message[:4] != _OUR_PROPERTIES or message[5:7] != _OURS_START or message[8:17] != b"penstock-":
        return 0
    return 5 + message[4]


def _short(message: bytes, at: int) -> _Content | None:
    """Decode like `_content`, several times faster, messages of short text properties and one section of data. Return
    None for others."""
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    try:
        if message[at : at + 4] == _SHORT_MAP:
            end = at + 5 + message[at + 4]
            at += 6
            while at < end:
                middle = at + 2 + message[at + 1]
                last = middle + 2 + message[middle + 1]
                if message[at] != 0xA1 or message[middle] not in (0xA0, 0xA1):
                    return None
                name = message[at + 2 : middle]
                if name == _KEY_BYTES:
                    key = message[middle + 2 : last]
                elif name in _OUR_NAMES:
                    return None
                else:
                    headers.append((name.decode(), message[middle + 2 : last]))
                at = last
        kind = message[at : at + 4]
        if kind == _SHORT_DATA and at + 5 + message[at + 4] == len(message):
            return key, message[at + 5 :], tuple(headers)
        if kind == _LONG_DATA and at + 8 + int.from_bytes(message[at + 4 : at + 8]) == len(message):
            return key, message[at + 8 :], tuple(headers)
    except (IndexError, UnicodeDecodeError):
        return None
    return None


_KEY_BYTES: Final = KEY.encode()
_OUR_NAMES: Final = frozenset(name.encode() for name in _OURS)


def _sections(message: bytes, at: int) -> list[Described]:
    found = []
    while at < len(message):
        section, at = decode(message, at)
        if not isinstance(section, Described) or section.descriptor not in _SECTIONS:
            raise NotAmqpError("a message consists of sections")
        if not isinstance(section.value, _KINDS.get(section.descriptor, object)):
            raise NotAmqpError("a section has a content of another kind")
        found.append(section)
    if not found:
        raise NotAmqpError("a message is not empty")
    return found


_SECTIONS: Final = range(0x70, 0x79)
_KINDS: Final[dict[int, type]] = {0x73: list, 0x74: dict, 0x75: bytes, 0x76: list}
"""What standard and application properties, data and sequences consist of."""


def _content(sections: list[Described]) -> _Content:
    key: bytes | None = None
    is_null = False
    headers: list[tuple[str, bytes | None]] = []
    body: list[Described] = []
    for section in sections:
        match section.descriptor:
            case 0x73:
                headers += _standard_properties(section.value)
            case 0x74:
                for name, value in section.value.items():
                    if name == KEY:
                        key = _bytes_of(value)
                    elif name == NULL:
                        is_null = bool(value)
                    elif name == HEADERS:
                        headers += _listed(value)
                    else:
                        headers.append((str(name), _bytes_of(value)))
            case 0x75 | 0x76 | 0x77:
                body.append(section)
    return key, None if is_null else _value(body), tuple(headers)


def _listed(text: Any) -> list[tuple[str, bytes | None]]:
    """The headers in a `penstock-headers`."""
    try:
        return [
            (str(name), None if content is None else base64.b64decode(content)) for name, content in json.loads(text)
        ]
    except (ValueError, TypeError):  # it is not one of ours
        return [(HEADERS, _bytes_of(text))]


def _standard_properties(values: list[Any]) -> list[tuple[str, bytes | None]]:
    given = zip(_PROPERTY_NAMES, values, strict=False)
    return [
        (f"amqp-{name}", _bytes_of(value))
        for name, value in given
        if value is not None and not (name == "message-id" and str(value).startswith(_ID_PREFIX))
    ]


def _value(body: list[Described]) -> bytes | None:
    if not body:
        return None  # as some libraries write null
    if all(section.descriptor == 0x75 for section in body):
        return b"".join(section.value for section in body)
    if body[0].descriptor == 0x77:
        return _bytes_of(body[0].value)
    return _bytes_of([part for section in body for part in section.value])


def _bytes_of(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(_plain(value)).encode()


def _plain(value: Any) -> Any:
    """A value that JSON has a form for."""
    match value:
        case Described():
            return _plain(value.value)
        case dict():
            return {str(_plain(name)): _plain(content) for name, content in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.decode(errors="replace")
        case None | bool() | int() | float() | str():
            return value
    return str(value)
