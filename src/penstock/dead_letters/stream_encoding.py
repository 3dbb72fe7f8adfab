"""Letters as records of a topic, which any client of the stream can read.

The value of a letter's record is the value of the original record, and its headers begin with those of the original, so
a program that reads the topic finds what it knows. Everything else is in further headers, whose names begin with
`penstock-letter`. The key is the letter's id. A later event of a letter (taken, redriven, discarded) is a record with
the same key and without a value.

A record that would be too large is stored in parts: key, value and headers of the original, packed together and split
over several records. The first of them has the headers that describe the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.dead_letters.letter_index import Event, EventKind
from penstock.dead_letters.merging import FAILURE, failure_of
from penstock.model import DeadLetter, Headers, NewRecord, Record

KIND: Final = "penstock-letter"
"""The event: put, taken, redriven, returned, discarded; or `part`: a further part of a letter that was put."""
_PREFIX: Final = "penstock-letter-"
HEADERS: Final = _PREFIX + "headers"
"""How many of the record's headers, counted from the first, are those of the original. All others are ours."""
OPERATION: Final = _PREFIX + "operation"
ORDER: Final = _PREFIX + "order"
"""Grows with each letter that a process puts: their order, where they are spread over partitions."""
PART: Final = _PREFIX + "part"
"""`2/3`: the second of three parts."""
_MORE: Final = "part"

_GROUP: Final = _PREFIX + "group"
_TOPIC: Final = _PREFIX + "topic"
_PARTITION: Final = _PREFIX + "partition"
_POINTER: Final = _PREFIX + "pointer"
_KEY: Final = _PREFIX + "key"
_TIMESTAMP: Final = _PREFIX + "timestamp-ms"
_TAKER: Final = _PREFIX + "taker"
_NUMBERS: Final = frozenset({"attempts", "first_ms", "last_ms", "redrives"})


class NotALetter(ValueError):
    """The record does not describe a letter, or cannot be decoded."""


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A decoded record of the topic."""

    event: Event | None
    """None for the second and further parts of a letter."""
    id: str
    operation: str
    order: int
    part: int
    parts: int
    payload: bytes
    """This part of the original record, if there are several."""


class Packed(msgspec.Struct, array_like=True, frozen=True):
    """Key, value and headers of an original record, to be stored in parts."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def letter_records(
    letter: DeadLetter, topic: str, partition: int | None, operation: str, order: int, limit: int
) -> list[NewRecord]:
    """The record of a letter that is put, or its parts if it is larger than `limit` bytes."""
    original = letter.record
    # The end of a traceback is its most useful part.
    letter = replace(letter, traceback=letter.traceback[-(limit // 8) :], error=letter.error[: limit // 8])
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
    """The record of any other event of a letter."""
    headers = (*_plain_headers(event.kind, operation), (_TAKER, event.taker.encode()), _count(0))
    return NewRecord(topic, None, event.id.encode(), headers, partition=partition)


def read_record(record: Record) -> DecodedRecord:
    """Decode a record of the topic. Raises NotALetter."""
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
        return DecodedRecord(event, id, operation, order, int(part), int(parts), record.value or b"")
    except (KeyError, ValueError) as error:
        raise NotALetter(f"a header is missing or malformed: {error!r}") from error


def join(letter: DeadLetter, payloads: Sequence[bytes]) -> DeadLetter:
    """A letter with the original record, joined from its parts."""
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
        **{_header(name): str(value) for name, value in failure_of(letter).items()},
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
    failure = {name: ours[_header(name)] for name in FAILURE}
    typed = {name: int(text) if name in _NUMBERS else text.decode() for name, text in failure.items()}
    return DeadLetter(id=id, group=ours[_GROUP].decode(), record=record, **typed)  # type: ignore[arg-type]


def _header(name: str) -> str:
    """The header for a field of a letter: `penstock-letter-error-kind`."""
    return _PREFIX + name.replace("_", "-")


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
