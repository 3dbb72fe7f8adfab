"""Decoding requests by the protocol's schemas, with memory bounded by the request's size.

A claimed count or length is compared with the remaining bytes before anything is allocated for it, and null is refused
where the protocol does not allow it; kio's own reader does neither, and a claimed array of 2^31 entries would end the
process. Unknown tagged fields are skipped, as the protocol requires. The result is kio's objects.
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

from penstock.broker.wire.primitives import MalformedRequestError, claim_entries, read_uvarint
from penstock.broker.wire.shapes import FIXED, Shape, shape_of

LONGEST_STRING_BYTES: Final = 0x7FFF
"""The maximum of a two-byte length. Kafka applies the same limit to compact strings."""

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_LONGEST_MS: Final = -(datetime.timedelta.min // _MILLISECOND)
_DURATIONS: Final = {"timedelta_i32": FIXED["int32"], "timedelta_i64": FIXED["int64"]}


class Source:
    __slots__ = ("data", "entries_left", "position")

    def __init__(self, data: bytes, max_entries: int) -> None:
        self.data = data
        self.position = 0
        self.entries_left = max_entries

    def uvarint(self) -> int:
        position = self.position
        value = self.data[position]
        if value < 0x80:
            self.position = position + 1
        else:
            value, self.position = read_uvarint(self.data, position)
        return value

    def unpack(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def take(self, size: int) -> bytes:
        begin, end = self.position, self.position + size
        if end > len(self.data):
            raise MalformedRequestError(f"a field claims {size} bytes where {len(self.data) - begin} are left")
        self.position = end
        return self.data[begin:end]

    def claim(self, count: int) -> None:
        """Check that this many array entries fit into the request and its limit."""
        self.entries_left = claim_entries(count, len(self.data) - self.position, self.entries_left)


Read = Callable[[Source], Any]


@cache
def decoder(schema: type) -> Read:
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    hints = typing.get_type_hints(schema)
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in dataclasses.fields(schema):
        tag = field.metadata.get("tag")
        read = _field_reader(field, shape_of(hints[field.name]), flexible, tagged=tag is not None)
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[int(tag)] = (field.name, read)

    def read_fields(source: Source) -> Any:
        values = {name: read(source) for name, read in plain}
        if flexible and (count := source.uvarint()):
            _read_tagged(source, count, tagged, values)
        return schema(**values)

    return read_fields


def _read_tagged(source: Source, count: int, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(count):
        tag, size = source.uvarint(), source.uvarint()
        if tag not in known:
            source.take(size)
            continue
        name, read = known[tag]
        end = source.position + size
        values[name] = read(source)
        if source.position != end:
            raise MalformedRequestError(f"the tagged field {name} does not have the {size} bytes that it claims")


def _field_reader(field: dataclasses.Field[Any], shape: Shape, flexible: bool, *, tagged: bool) -> Read:
    if shape.is_array:
        return _array(field, shape, flexible)
    if shape.schema is None:
        return _primitive(field, flexible, shape.optional)
    entity = decoder(shape.schema)
    return _nullable_entity(entity) if shape.optional and not tagged else entity


def _array(field: dataclasses.Field[Any], shape: Shape, flexible: bool) -> Read:
    name, optional = field.name, shape.optional
    layout = FIXED.get(field.metadata.get("kafka_type", ""))
    one = decoder(shape.schema) if shape.schema else _primitive(field, flexible, False)

    def read(source: Source) -> Any:
        count = source.uvarint() - 1 if flexible else source.unpack(_INT)
        if count < 0:
            return _null(name, optional)
        source.claim(count)
        if layout is None:
            return tuple([one(source) for _ in range(count)])
        return struct.unpack(f">{count}{layout.format[1:]}", source.take(count * layout.size))

    return read


def _nullable_entity(entity: Read) -> Read:
    def read(source: Source) -> Any:
        return None if source.unpack(FIXED["int8"]) < 0 else entity(source)

    return read


def _null(name: str, optional: bool) -> None:
    if not optional:
        raise MalformedRequestError(f"{name} is null, which the protocol does not allow")


def _primitive(field: dataclasses.Field[Any], flexible: bool, optional: bool) -> Read:
    kind = field.metadata["kafka_type"]
    if kind in FIXED:
        return _fixed(FIXED[kind])
    if kind in _DURATIONS:
        duration = _DURATIONS[kind]
        return lambda source: min(max(source.unpack(duration), -_LONGEST_MS), _LONGEST_MS) * _MILLISECOND
    if kind == "uuid":
        return _uuid
    if kind == "string":
        return _string(field.name, flexible, optional)
    if kind == "bytes":
        return _bytes(field.name, flexible, optional)
    raise TypeError(f"no way to read {kind!r} of field {field.name}")


def _fixed(layout: struct.Struct) -> Read:
    unpack, size = layout.unpack_from, layout.size

    def read(source: Source) -> Any:
        position = source.position
        source.position = position + size
        return unpack(source.data, position)[0]

    return read


def _uuid(source: Source) -> uuid.UUID | None:
    value = uuid.UUID(bytes=source.take(16))
    return value if value.int else None


def _string(name: str, flexible: bool, optional: bool) -> Read:
    def read(source: Source) -> Any:
        size = source.uvarint() - 1 if flexible else source.unpack(_SHORT)
        if size < 0:
            return _null(name, optional)
        if size > LONGEST_STRING_BYTES:
            raise MalformedRequestError(f"{name} has {size} bytes; a string has at most {LONGEST_STRING_BYTES}")
        return source.take(size).decode()

    return read


def _bytes(name: str, flexible: bool, optional: bool) -> Read:
    def read(source: Source) -> Any:
        size = source.uvarint() - 1 if flexible else source.unpack(_INT)
        return _null(name, optional) if size < 0 else source.take(size)

    return read
