"""Encoding responses by the protocol's schemas.

For each response schema an encoder is compiled once: a list of small functions, one per field, that write from a plain
mapping. Handlers fill in the fields of every version; those that a version does not have are skipped, and missing ones
get the protocol's default. A part given as bytes is already encoded and is copied.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import struct
import typing
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from penstock.broker.wire.primitives import uvarint
from penstock.broker.wire.shapes import FIXED, shape_of

Write = Callable[[bytearray, Any], None]

_NO_UUID: Final = bytes(16)
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_REQUIRED: Final = object()
LONGEST_MESSAGE: Final = 1_000
"""How many characters of an error message are sent."""


@cache
def encoder(schema: type) -> Write:
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    hints = typing.get_type_hints(schema)
    plain: list[tuple[str, Write, Any]] = []
    tagged: list[tuple[int, str, Write, Any]] = []
    for field in dataclasses.fields(schema):
        write, default = _field_writer(field, hints[field.name], flexible)
        if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
            default = field.default
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, write, default))
        else:
            tagged.append((int(tag), field.name, write, default))
    name = schema.__name__

    def write_fields(out: bytearray, values: Mapping[str, Any] | bytes) -> None:
        if isinstance(values, bytes):
            out += values
            return
        for field_name, write, default in plain:
            value = values.get(field_name, default)
            if value is _REQUIRED:
                raise KeyError(f"{name}: the response lacks {field_name}")
            write(out, value)
        if flexible:
            _write_tagged(out, values, tagged)

    return write_fields


def has_error_code(schema: type) -> bool:
    """Whether a response can report that the whole request failed. Otherwise errors are in its lists, one per entry."""
    return any(field.metadata.get("kafka_type") == "error_code" for field in dataclasses.fields(schema))


def blank(schema: type, code: enum.IntEnum, message: str | None) -> dict[str, Any]:
    """The fields of a response with only an error: empty lists, zero numbers."""
    hints = typing.get_type_hints(schema)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        shape = shape_of(hints[field.name])
        if field.name == "error_message":
            fields[field.name] = message
        elif field.metadata.get("kafka_type") == "error_code":
            fields[field.name] = code
        elif "tag" in field.metadata or shape.optional:
            continue
        elif shape.is_array:
            fields[field.name] = ()
        elif shape.schema is not None:
            fields[field.name] = blank(shape.schema, code, message)
        elif field.default is dataclasses.MISSING:
            zeros = {"string": "", "bytes": b"", "records": b"", "uuid": None}
            fields[field.name] = zeros.get(field.metadata["kafka_type"], 0)
    return fields


def _write_tagged(out: bytearray, values: Mapping[str, Any], tagged: list[tuple[int, str, Write, Any]]) -> None:
    present = [(tag, write, values[name]) for tag, name, write, _ in tagged if name in values]
    out += uvarint(len(present))
    for tag, write, value in present:
        content = bytearray()
        write(content, value)
        out += uvarint(tag) + uvarint(len(content)) + content


def _field_writer(field: dataclasses.Field[Any], hint: Any, flexible: bool) -> tuple[Write, Any]:
    """The function that writes the field, and the default if neither the handler nor the schema has a value."""
    shape = shape_of(hint)
    if shape.is_array:
        one = encoder(shape.schema) if shape.schema is not None else _primitive(field, flexible, False)
        return _array_writer(one, flexible), None if shape.optional else ()
    if shape.schema is not None:
        entity = encoder(shape.schema)
        return (_nullable_entity(entity), None) if shape.optional else (entity, _REQUIRED)
    write = _primitive(field, flexible, shape.optional)
    if field.name == "throttle_time" or field.metadata["kafka_type"] == "error_code":
        return write, 0
    return write, None if shape.optional else _REQUIRED


def _array_writer(one: Write, flexible: bool) -> Write:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return
        out += uvarint(len(values) + 1) if flexible else _INT.pack(len(values))
        for value in values:
            one(out, value)

    return write


def _nullable_entity(entity: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
        else:
            out += b"\x01"
            entity(out, value)

    return write


def _primitive(field: dataclasses.Field[Any], flexible: bool, optional: bool) -> Write:
    kind = field.metadata["kafka_type"]
    if kind in FIXED:
        return _fixed(FIXED[kind])
    if kind == "string":
        return _message(_string(flexible)) if field.name == "error_message" else _string(flexible)
    if kind in ("bytes", "records"):
        return _sized(flexible, _INT)
    if kind == "uuid":
        return _uuid
    if kind in ("timedelta_i32", "timedelta_i64"):
        return _duration(_INT if kind == "timedelta_i32" else _LONG)
    if kind == "datetime_i64":
        return _moment
    raise TypeError(f"no way to write {kind!r} of field {field.name}")


def _fixed(layout: struct.Struct) -> Write:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value.value if isinstance(value, enum.Enum) else value)

    return write


def _sized(flexible: bool, layout: struct.Struct) -> Write:
    """Bytes after their length; null has a length of -1, or 0 in flexible versions, which count from 1."""
    null = b"\x00" if flexible else layout.pack(-1)

    def write(out: bytearray, value: bytes | None) -> None:
        if value is None:
            out += null
        else:
            out += uvarint(len(value) + 1) if flexible else layout.pack(len(value))
            out += value

    return write


def _string(flexible: bool) -> Write:
    write_bytes = _sized(flexible, _SHORT)
    return lambda out, value: write_bytes(out, None if value is None else value.encode())


def _message(write_text: Write) -> Write:
    """Messages may quote what the client sent, which may be very long."""

    def write(out: bytearray, value: str | None) -> None:
        if value is not None and len(value) > LONGEST_MESSAGE:
            value = f"{value[: LONGEST_MESSAGE - 3]}..."
        write_text(out, value)

    return write


def _uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += _NO_UUID if value is None else value.bytes


def _duration(layout: struct.Struct) -> Write:
    def write(out: bytearray, value: int | datetime.timedelta) -> None:
        if isinstance(value, datetime.timedelta):
            value = value // datetime.timedelta(milliseconds=1)
        out += layout.pack(value)

    return write


def _moment(out: bytearray, value: int | datetime.datetime | None) -> None:
    if isinstance(value, datetime.datetime):
        value = (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    out += _LONG.pack(-1 if value is None else value)
