"""Letters as records of a topic, which any client of the stream can read.

The value of a letter's record is the value of the record that was given up, and its headers begin with those of that
record, so a program that reads the topic finds what it knows. All else is in further headers, whose names begin with
`penstock-letter`. The key is the letter's id. What happens to a letter later (somebody took it, redrove it, discarded
it) is a record with the same key, without a value.

A record that would not fit with all that is stored in parts: key, value and headers of the original, packed together
and split over several records. The first of them has the headers that tell of the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.consuming.dead_letters.ledger import Event, EventKind
from penstock.model import DeadLetter, Headers, NewRecord, Record

KIND: Final = "penstock-letter"
"""What the record tells: put, taken, redriven, returned, discarded; or `part`: more of a letter that was put."""
_PREFIX: Final = "penstock-letter-"
HEADERS: Final = _PREFIX + "headers"
"""How many of the record's headers, counted from the first, are those of the original record. All others are ours."""
OPERATION: Final = _PREFIX + "operation"
ORDER: Final = _PREFIX + "order"
"""Grows from letter to letter that one process puts: their order, where they are spread over partitions."""
PART: Final = _PREFIX + "part"
"""`2/3`: the second of three parts."""
_MORE: Final = "part"

_GROUP: Final = _PREFIX + "group"
_TOPIC: Final = _PREFIX + "topic"
_PARTITION: Final = _PREFIX + "partition"
_POINTER: Final = _PREFIX + "pointer"
_KEY: Final = _PREFIX + "key"
_TIMESTAMP: Final = _PREFIX + "timestamp-ms"
_ERROR: Final = _PREFIX + "error"
_ERROR_KIND: Final = _PREFIX + "error-kind"
_TRACEBACK: Final = _PREFIX + "traceback"
_ATTEMPTS: Final = _PREFIX + "attempts"
_FIRST: Final = _PREFIX + "first-ms"
_LAST: Final = _PREFIX + "last-ms"
_HANDLER: Final = _PREFIX + "handler"
_HANDLER_VERSION: Final = _PREFIX + "handler-version"
_REDRIVES: Final = _PREFIX + "redrives"
_TAKER: Final = _PREFIX + "taker"


class NotALetter(ValueError):
    """The record says nothing about a letter, or nothing that can be understood."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A record of the topic, understood."""

    event: Event | None
    """None for the second part of a letter, and all further ones."""
    id: str
    operation: str
    order: int
    part: int
    parts: int
    payload: bytes
    """This part of the original record, where there are several."""


class Packed(msgspec.Struct, array_like=True, frozen=True):
    """Key, value and headers of an original record, to be stored in parts."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def letter_records(
    letter: DeadLetter, topic: str, partition: int | None, operation: str, order: int, limit: int
) -> list[NewRecord]:
    """The record of a letter that is put, or its parts when it is larger than `limit` bytes."""
    original = letter.record
    letter = replace(letter, traceback=_last(letter.traceback, limit // 8), error=_first(letter.error, limit // 8))
    ours = (*_letter_headers(letter, operation), (ORDER, str(order).encode()))
    key = letter.id.encode()
    whole = (*original.headers, *ours, (_KEY, original.key), _count(len(original.headers)))
    if _size_bytes(whole) + len(original.value or b"") <= limit:
        return [NewRecord(topic, original.value, key, whole, partition=partition)]
    packed = msgspec.msgpack.encode(Packed(original.key, original.value, original.headers))
    step = max(1, limit // 2)
    payloads = [packed[start : start + step] for start in range(0, len(packed), step)]
    records = []
    for number, payload in enumerate(payloads, start=1):
        told = ours if number == 1 else _plain_headers(_MORE, operation)
        headers = (*told, (PART, f"{number}/{len(payloads)}".encode()), _count(0))
        records.append(NewRecord(topic, payload, key, headers, partition=partition))
    return records


def event_record(event: Event, topic: str, partition: int | None, operation: str) -> NewRecord:
    """The record of anything else that happens to a letter."""
    headers = (*_plain_headers(event.kind, operation), (_TAKER, event.taker.encode()), _count(0))
    return NewRecord(topic, None, event.id.encode(), headers, partition=partition)


def read_record(record: Record) -> Noted:
    """What a record of the topic tells. Raises NotALetter."""
    count, ours = _ours(record)
    try:
        kind = ours[KIND].decode()
        id = (record.key or b"").decode()
        part, _, parts = ours.get(PART, b"1/1").decode().partition("/")
        event = None
        if kind == EventKind.PUT:
            value, headers = (record.value, record.headers[:count]) if parts == "1" else (None, ())
            event = Event(EventKind.PUT, id, _letter(id, ours, value, headers))
        elif kind != _MORE:
            event = Event(EventKind(kind), id, taker=ours.get(_TAKER, b"").decode())
        operation, order = ours.get(OPERATION, b"").decode(), int(ours.get(ORDER, b"0"))
        return Noted(event, id, operation, order, int(part), int(parts), record.value or b"")
    except (KeyError, ValueError) as error:
        raise NotALetter(f"a header is missing or cannot be understood: {error!r}") from error


def join(letter: DeadLetter, payloads: Sequence[bytes]) -> DeadLetter:
    """A letter with the original record that its parts hold."""
    try:
        packed = msgspec.msgpack.decode(b"".join(payloads), type=Packed)
    except msgspec.DecodeError as error:
        raise NotALetter(f"its parts do not fit together: {error}") from error
    return replace(letter, record=replace(letter.record, key=packed.key, value=packed.value, headers=packed.headers))


def _letter_headers(letter: DeadLetter, operation: str) -> Headers:
    record = letter.record
    texts = {
        _GROUP: letter.group,
        _TOPIC: record.topic,
        _PARTITION: str(record.partition),
        _POINTER: record.pointer,
        _ERROR: letter.error,
        _ERROR_KIND: letter.error_kind,
        _TRACEBACK: letter.traceback,
        _ATTEMPTS: str(letter.attempts),
        _FIRST: str(letter.first_ms),
        _LAST: str(letter.last_ms),
        _HANDLER: letter.handler,
        _HANDLER_VERSION: letter.handler_version,
        _REDRIVES: str(letter.redrives),
    }
    if record.timestamp_ms is not None:
        texts[_TIMESTAMP] = str(record.timestamp_ms)
    named = tuple((name, text.encode("utf-8", "backslashreplace")) for name, text in texts.items())
    return (*_plain_headers(EventKind.PUT, operation), *named)


def _letter(id: str, ours: dict[str, bytes], value: bytes | None, headers: Headers) -> DeadLetter:
    timestamp_ms = ours.get(_TIMESTAMP)
    record = Record(
        topic=ours[_TOPIC].decode(),
        partition=int(ours[_PARTITION]),
        offset=int(ours[_POINTER]),
        key=ours.get(_KEY),
        value=value,
        headers=headers,
        timestamp_ms=None if timestamp_ms is None else int(timestamp_ms),
    )
    return DeadLetter(
        id=id,
        group=ours[_GROUP].decode(),
        record=record,
        error=ours[_ERROR].decode(),
        error_kind=ours[_ERROR_KIND].decode(),
        traceback=ours[_TRACEBACK].decode(),
        attempts=int(ours[_ATTEMPTS]),
        first_ms=int(ours[_FIRST]),
        last_ms=int(ours[_LAST]),
        handler=ours[_HANDLER].decode(),
        handler_version=ours[_HANDLER_VERSION].decode(),
        redrives=int(ours[_REDRIVES]),
    )


def _ours(record: Record) -> tuple[int, dict[str, bytes]]:
    """How many headers are the original's, and ours by name. Ours are the last, so the last count is ours."""
    for name, content in reversed(record.headers):
        if name == HEADERS and content is not None and content.isdigit():
            count = int(content)
            return count, {name: content for name, content in record.headers[count:] if content is not None}
    raise NotALetter(f"it has no header {HEADERS}")


def _plain_headers(kind: str, operation: str) -> Headers:
    return ((KIND, kind.encode()), (OPERATION, operation.encode()))


def _count(original: int) -> tuple[str, bytes]:
    return HEADERS, str(original).encode()


def _size_bytes(headers: Headers) -> int:
    overhead_bytes = 16
    return sum(len(name.encode("utf-8", "replace")) + len(content or b"") + overhead_bytes for name, content in headers)


def _first(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length]


def _last(text: str, length: int) -> str:
    """The end of a traceback tells most."""
    return text if len(text) <= length else text[-length:]
