"""Requests by the protocol's schemas, with room for what the schemas do not know yet.

A client may put tagged fields into a request that were added to the protocol after our schemas were made, and whoever
does not know them must pass them over. kio's own reader, which is quicker, refuses them, so this one takes its place
for such a request. What it gives are kio's own objects, the same as from the quick reader.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import typing
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.wire.primitives import MalformedRequestError, read_uvarint
from penstock.broker.wire.shapes import FIXED, shape_of

Read = Callable[[bytes, int], tuple[Any, int]]

_FIXED: Final = FIXED | {
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def decoder(schema: type) -> Read:
    """What reads this schema."""
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    hints = typing.get_type_hints(schema)
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in dataclasses.fields(schema):
        tag = field.metadata.get("tag")
        read = _field_reader(field, hints[field.name], flexible, nullable=tag is None)
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[int(tag)] = (field.name, read)

    def read_fields(data: bytes, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, read in plain:
            values[name], position = read(data, position)
        if flexible:
            position = _read_tagged(data, position, tagged, values)
        return schema(**values), position

    return read_fields


def _read_tagged(data: bytes, position: int, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> int:
    count, position = read_uvarint(data, position)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if position + size > len(data):
            raise MalformedRequestError("a tagged field reaches past the end of the request")
        if tag in known:
            name, read = known[tag]
            values[name], _ = read(data, position)
        position += size
    return position


def _field_reader(field: dataclasses.Field[Any], hint: Any, flexible: bool, *, nullable: bool) -> Read:
    shape = shape_of(hint)
    if shape.is_array:
        return _array_reader(decoder(shape.schema) if shape.schema else _primitive(field, flexible), flexible)
    if shape.schema is None:
        return _primitive(field, flexible)
    entity = decoder(shape.schema)
    return _nullable_entity(entity) if shape.optional and nullable else entity


def _array_reader(one: Read, flexible: bool) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = _length(data, position, flexible, _INT)
        if count is None:
            return None, position
        values = []
        for _ in range(count):
            value, position = one(data, position)
            values.append(value)
        return tuple(values), position

    return read


def _nullable_entity(entity: Read) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        return (None, position + 1) if data[position] == 0xFF else entity(data, position + 1)

    return read


def _length(data: bytes, position: int, flexible: bool, legacy: struct.Struct) -> tuple[int | None, int]:
    if flexible:
        size, position = read_uvarint(data, position)
        return (size - 1 if size else None), position
    (size,) = legacy.unpack_from(data, position)
    return (size if size >= 0 else None), position + legacy.size


def _primitive(field: dataclasses.Field[Any], flexible: bool) -> Read:
    kind = field.metadata["kafka_type"]
    if kind in _FIXED:
        return _fixed(_FIXED[kind], _MEANINGS.get(kind))
    if kind == "uuid":
        return _uuid
    return _bytes(flexible, text=kind == "string")


def _fixed(layout: struct.Struct, meaning: Callable[[Any], Any] | None) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        (value,) = layout.unpack_from(data, position)
        return (value if meaning is None else meaning(value)), position + layout.size

    return read


_MEANINGS: Final[dict[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda ms: datetime.timedelta(milliseconds=ms),
    "timedelta_i64": lambda ms: datetime.timedelta(milliseconds=ms),
    "datetime_i64": lambda ms: None if ms == -1 else _EPOCH + datetime.timedelta(milliseconds=ms),
}


def _uuid(data: bytes, position: int) -> tuple[uuid.UUID | None, int]:
    value = uuid.UUID(bytes=data[position : position + 16])
    return (value if value.int else None), position + 16


def _bytes(flexible: bool, *, text: bool) -> Read:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        size, position = _length(data, position, flexible, _SHORT if text else _INT)
        if size is None:
            return None, position
        end = position + size
        if end > len(data):
            raise MalformedRequestError(f"a field claims {size} bytes where {len(data) - position} are left")
        value = data[position:end]
        return (value.decode() if text else value), end

    return read
