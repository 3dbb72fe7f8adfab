"""Events as lines of JSON, for people to read and for other programs: an object a line.

Bytes that are text stand there as text, others in base64 under a name that says so, as in `penstock consume`.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.consuming.dead_letters.ledger import Event, EventKind
from penstock.model import DeadLetter, Headers, Record


class NotALine(ValueError):
    """A line that tells nothing about a letter, or is damaged."""


class _Base64(msgspec.Struct, frozen=True):
    base64: str


class _Letter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    group: str
    topic: str
    partition: int
    pointer: str
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: tuple[tuple[str, str | _Base64 | None], ...] = ()
    timestamp_ms: int | None = None
    error: str
    error_kind: str
    attempts: int
    first_ms: int
    last_ms: int
    handler: str
    handler_version: str
    redrives: int = 0
    traceback: str = ""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    event: EventKind
    id: str
    taker: str = ""
    letter: _Letter | None = None


_decoder = msgspec.json.Decoder(_Line)


def line_of(event: Event) -> bytes:
    """The line, with its end."""
    letter = None if event.letter is None else _line_letter(event.letter)
    return msgspec.json.encode(_Line(event=event.kind, id=event.id, taker=event.taker, letter=letter)) + b"\n"


def event_of(line: bytes) -> Event:
    """What a line tells. Raises NotALine."""
    try:
        found = _decoder.decode(line)
        if (found.event is EventKind.PUT) != (found.letter is not None):
            raise NotALine("a letter is there when it is put, and only then")
        letter = None if found.letter is None else _letter(found.id, found.letter)
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise NotALine(str(error)) from error
    return Event(found.event, found.id, letter, found.taker)


def _line_letter(letter: DeadLetter) -> _Letter:
    record = letter.record
    key, value = _text(record.key), _text(record.value)
    return _Letter(
        group=letter.group,
        topic=record.topic,
        partition=record.partition,
        pointer=record.pointer,
        key=None if isinstance(key, _Base64) else key,
        key_base64=key.base64 if isinstance(key, _Base64) else None,
        value=None if isinstance(value, _Base64) else value,
        value_base64=value.base64 if isinstance(value, _Base64) else None,
        headers=tuple((name, _text(content)) for name, content in record.headers),
        timestamp_ms=record.timestamp_ms,
        error=letter.error,
        error_kind=letter.error_kind,
        attempts=letter.attempts,
        first_ms=letter.first_ms,
        last_ms=letter.last_ms,
        handler=letter.handler,
        handler_version=letter.handler_version,
        redrives=letter.redrives,
        traceback=letter.traceback,
    )


def _letter(id: str, line: _Letter) -> DeadLetter:
    headers: Headers = tuple((name, _bytes(content)) for name, content in line.headers)
    record = Record(
        topic=line.topic,
        partition=line.partition,
        offset=_pointer(line.pointer),
        key=_bytes(line.key if line.key_base64 is None else _Base64(line.key_base64)),
        value=_bytes(line.value if line.value_base64 is None else _Base64(line.value_base64)),
        headers=headers,
        timestamp_ms=line.timestamp_ms,
    )
    return DeadLetter(
        id=id,
        group=line.group,
        record=record,
        error=line.error,
        error_kind=line.error_kind,
        traceback=line.traceback,
        attempts=line.attempts,
        first_ms=line.first_ms,
        last_ms=line.last_ms,
        handler=line.handler,
        handler_version=line.handler_version,
        redrives=line.redrives,
    )


def _text(content: bytes | None) -> str | _Base64 | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return _Base64(base64.b64encode(content).decode())


def _bytes(text: str | _Base64 | None) -> bytes | None:
    if isinstance(text, _Base64):
        return base64.b64decode(text.base64, validate=True)
    return None if text is None else text.encode()


def _pointer(text: str) -> int:
    if not text.lstrip("-").isdecimal():
        raise NotALine(f"{text!r} is no pointer")
    return int(text)
