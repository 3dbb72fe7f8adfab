"""Records as lines of a file, and what lines and rows of other programs are as records.

Ours: `{"penstock":1,"timestamp_ms":...,"key":"...","value":"...","headers":[["name","..."]]}`. Bytes that are not UTF-8
are `{"base64":"..."}`, and what is null is left out. Any other line is the value as it is.
"""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.errors import DeliveryError
from penstock.model import NewRecord, Pointer, Record
from penstock.streams.file.settings import FileSettings


class Line(msgspec.Struct, omit_defaults=True):
    """A line of ours."""

    penstock: int
    timestamp_ms: int
    key: str | dict[str, str] | None = None
    value: str | dict[str, str] | None = None
    headers: list[tuple[str, str | dict[str, str] | None]] | None = None


_DECODE_OURS: Final = msgspec.json.Decoder(Line).decode
_ENCODE: Final = msgspec.json.Encoder(enc_hook=str).encode
_DECODE: Final = msgspec.json.Decoder().decode


def encode_line(record: NewRecord, settings: FileSettings) -> bytes | DeliveryError:
    """A line with its end, or why there is none."""
    if not settings.envelope:
        if record.value is None or not record.value.strip() or b"\n" in record.value:
            return DeliveryError(
                f"a record for topic {record.topic!r} is not one line, so it cannot be written with envelope=false"
            )
        return record.value + b"\n"
    stamp_ms = time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
    headers = [(name, _text(value)) for name, value in record.headers] if record.headers else None
    return _ENCODE(Line(1, stamp_ms, _text(record.key), _text(record.value), headers)) + b"\n"


def decode_line(topic: str, pointer: Pointer, line: bytes, settings: FileSettings) -> Record:
    """A line without its end. Nothing that a line may contain is an error."""
    try:
        if line.startswith(b'{"penstock":1,'):
            ours = _DECODE_OURS(line)
            headers = tuple((name, _bytes(value)) for name, value in ours.headers) if ours.headers else ()
            return Record(topic, 0, pointer, _bytes(ours.key), _bytes(ours.value), headers, ours.timestamp_ms)
        fields = _DECODE(line) if settings.key_field or settings.timestamp_field else None
        if isinstance(fields, dict):
            return _of_fields(topic, pointer, fields, line, settings)
    except (ValueError, TypeError, KeyError):
        pass
    return Record(topic, 0, pointer, None, line.removesuffix(b"\r"))


def from_object(topic: str, pointer: Pointer, fields: Mapping[str, Any], settings: FileSettings) -> Record:
    """A row, whose value is a JSON object."""
    return _of_fields(topic, pointer, fields, bytes(_ENCODE(fields)), settings)


def _of_fields(topic: str, pointer: Pointer, fields: Mapping[str, Any], value: bytes, settings: FileSettings) -> Record:
    key = fields.get(settings.key_field) if settings.key_field else None
    key_bytes = None if key is None else key if isinstance(key, bytes) else _plain(key)
    stamp_ms = _milliseconds(fields.get(settings.timestamp_field)) if settings.timestamp_field else None
    return Record(topic, 0, pointer, key_bytes, value, (), stamp_ms)


def _plain(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(_ENCODE(value))


def _milliseconds(value: Any) -> int | None:
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return int(moment.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value) if value.isdecimal() else _milliseconds(datetime.datetime.fromisoformat(value))
        except ValueError:
            return None
    return None


def _text(data: bytes | None) -> Any:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
