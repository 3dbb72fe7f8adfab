"""Records as AMQP 1.0 messages, and messages of any program as records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from penstock.model import NewRecord, Record
from penstock.queues.text_headers import offset_of
from penstock.streams.adapting.amqp_values import (
    NULL,
    TRUE,
    Described,
    decode,
    encode_binary,
    encode_list,
    encode_long,
    encode_map,
    encode_symbol,
    encode_text,
    encode_text_or_binary,
    encode_timestamp,
    encode_ubyte,
    encode_uint,
    map_entries,
)

KEY: Final = "penstock-key"
NULL_VALUE: Final = "penstock-null"
TIMESTAMP: Final = "penstock-timestamp"
AGAIN: Final = "penstock-again-"
"""Before the place and the name of a header whose name occurs more than once, or is like ours: property names are
unique."""
OURS: Final = "penstock-"
ATTEMPTS: Final = "x-opt-penstock-attempts"
"""The annotation of a delayed copy: how often the record was delivered before."""
DELAY: Final = "x-opt-delivery-delay"
DELIVERY_TIME: Final = "x-opt-delivery-time"
DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
"""The property by which Artemis drops a message that it has seen: a copy would be dropped."""

_HEADER, _DELIVERY_ANNOTATIONS, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE = range(0x70, 0x78)
_MESSAGE_ID, _CREATION_TIME, _GROUP_ID = 0, 9, 10
"""Places in the list of properties."""
_PRIORITY, _TTL, _FIRST_ACQUIRER, _DELIVERY_COUNT = range(1, 5)
"""Places in the list of the header."""
_KINDS: Final = {
    _HEADER: list,
    _DELIVERY_ANNOTATIONS: dict,
    _ANNOTATIONS: dict,
    _PROPERTIES: list,
    _APPLICATION: dict,
    _DATA: bytes,
    _SEQUENCE: list,
}
_DURABLE: Final = b"\x00Sp" + encode_list([TRUE])


class Message(NamedTuple):
    """A received message: its record, and how often it was delivered before."""

    record: Record
    earlier_deliveries: int


def encoded_message(record: NewRecord, message_id: str, group_by_key: bool) -> bytes:
    """A durable message. `group_by_key` makes the key the group id, too."""
    properties = [encode_text(message_id)]
    group = _group(record.key) if group_by_key and record.key is not None else None
    stamp_ms = record.timestamp_ms
    has_creation_time = stamp_ms is not None and stamp_ms > 0
    if has_creation_time or group is not None:
        properties += [NULL] * (_CREATION_TIME - len(properties))
        properties.append(encode_timestamp(stamp_ms) if stamp_ms is not None and has_creation_time else NULL)
        if group is not None:
            properties.append(encode_text(group))
    parts = [_DURABLE, b"\x00Ss", encode_list(properties)]
    application = _application_properties(record)
    if stamp_ms is not None and not has_creation_time:  # many programs take 0 for no time
        application += [encode_text(TIMESTAMP), encode_long(stamp_ms)]
    if application:
        parts += [b"\x00St", encode_map(application)]
    parts += [b"\x00Su", encode_binary(record.value or b"")]
    return b"".join(parts)


def _application_properties(record: NewRecord) -> list[bytes]:
    """The keys and values of application properties, in turn."""
    entries: list[bytes] = []
    seen: set[str] = set()
    for place, (name, value) in enumerate(record.headers):
        stored_name = f"{AGAIN}{place}-{name}" if name in seen or name.startswith(OURS) else name
        seen.add(name)
        entries += [encode_text(stored_name), NULL if value is None else encode_text_or_binary(value)]
    if record.key is not None:
        entries += [encode_text(KEY), encode_text_or_binary(record.key)]
    if record.value is None:
        entries += [encode_text(NULL_VALUE), TRUE]
    return entries


def _group(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()


def decoded_message(queue: str, data: bytes) -> Message:
    """The message in these bytes. ValueError if it is not an AMQP message."""
    header: list[Any] = []
    annotations: dict[Any, Any] = {}
    properties: list[Any] = []
    given: dict[Any, Any] = {}
    body: list[Any] = []
    value: bytes | None = None
    for code, content, _, _ in sections(data):
        if code == _HEADER:
            header = content
        elif code == _ANNOTATIONS:
            annotations = content
        elif code == _PROPERTIES:
            properties = content
        elif code == _APPLICATION:
            given = content
        elif code == _DATA:
            value = content if value is None else value + content
        elif code == _SEQUENCE:
            body += content
            value = as_bytes(body)
        elif code == _VALUE:
            value = as_bytes(content)
    counts = (_at(header, _DELIVERY_COUNT), annotations.get(ATTEMPTS))
    earlier = sum(count for count in counts if isinstance(count, int))
    if not earlier and _at(header, _FIRST_ACQUIRER) is False:
        earlier = 1  # RabbitMQ 3 says that it was delivered before, and not how often
    key = given.get(KEY)
    key = _at(properties, _GROUP_ID) if key is None else key
    stamp_ms = given.get(TIMESTAMP, _at(properties, _CREATION_TIME))
    record = Record(
        queue,
        0,
        _offset(properties, given, value),
        as_bytes(key),
        None if given.get(NULL_VALUE) else value,
        _headers(given),
        stamp_ms if isinstance(stamp_ms, int) else None,
    )
    return Message(record, earlier)


def _headers(given: dict[Any, Any]) -> tuple[tuple[str, bytes | None], ...]:
    if not given:
        return ()
    headers: list[tuple[str, bytes | None]] = []
    repeated: list[tuple[int, str, bytes | None]] = []
    for name, value in given.items():
        if name in (KEY, NULL_VALUE, TIMESTAMP):
            continue
        place, dash, rest = str(name).removeprefix(AGAIN).partition("-")
        if str(name).startswith(AGAIN) and dash and place.isdecimal():
            repeated.append((int(place), rest, as_bytes(value)))
        else:
            headers.append((str(name), as_bytes(value)))
    for index, name, value in sorted(repeated, key=lambda each: each[0]):
        headers.insert(index, (name, value))
    return tuple(headers)


def delayed_copy(data: bytes, attempts: int, delay_s: float, now_s: float) -> bytes | None:
    """A copy to be delivered after the delay, with its number of attempts. None if the broker would drop a copy.

    Only what the sender cannot have signed is changed: the header and the annotations.
    """
    header: list[Any] = []
    annotations = [encode_symbol(ATTEMPTS), encode_long(attempts)]
    annotations += [encode_symbol(DELAY), encode_long(round(delay_s * 1000))]
    annotations += [encode_symbol(DELIVERY_TIME), encode_long(round((now_s + delay_s) * 1000))]
    rest_at = len(data)
    for section in sections(data):
        if section.code == _HEADER:
            header = section.content
        elif section.code == _ANNOTATIONS:
            for span in map_entries(data, section.content_at):
                if span.key not in (ATTEMPTS, DELAY, DELIVERY_TIME):
                    annotations += [data[span.start : span.value_at], data[span.value_at : span.end]]
        elif section.code >= _PROPERTIES:
            rest_at = min(rest_at, section.start)
            if section.code == _APPLICATION and DUPLICATE_ID in section.content:
                return None
    priority, ttl_ms = _at(header, _PRIORITY), _at(header, _TTL)
    fields = [TRUE, encode_ubyte(priority) if isinstance(priority, int) else NULL]
    fields.append(encode_uint(ttl_ms) if isinstance(ttl_ms, int) else NULL)
    return b"".join((b"\x00Sp", encode_list(fields), b"\x00Sr", encode_map(annotations), data[rest_at:]))


class Section(NamedTuple):
    """A section of a message: its kind, its content, and where it is."""

    code: int
    content: Any
    start: int
    content_at: int


def sections(data: bytes) -> Iterator[Section]:
    """The sections of a message. ValueError if the bytes are not a message."""
    at = 0
    while at < len(data):
        code, content_at = decode(data, at + 1)
        content, end = decode(data, content_at)
        kind = _KINDS.get(code) if isinstance(code, int) else None
        if data[at] or (kind is not None and not isinstance(content, kind)):
            raise ValueError(f"no section of an AMQP message begins at byte {at}")
        yield Section(code, content, at, content_at)
        at = end


def as_bytes(value: Any) -> bytes | None:
    """Text as UTF-8, any other type of AMQP as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(_plain(value)).encode()


def _plain(value: Any) -> Any:
    """A value in types that JSON has."""
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value) if isinstance(value, uuid.UUID) else value


def _at(items: list[Any], place: int) -> Any:
    return items[place] if len(items) > place else None


def _offset(properties: list[Any], given: dict[Any, Any], value: bytes | None) -> int:
    """An offset that is the same at each delivery. Equal messages without a message id have the same one."""
    message_id = _at(properties, _MESSAGE_ID)
    if isinstance(message_id, str):
        identity = message_id.encode()
    elif message_id is not None:
        identity = repr(message_id).encode()
    else:
        identity = repr((_at(properties, _CREATION_TIME), given)).encode() + (value or b"")
    return offset_of(identity)
