"""The types of fields in kio's schemas, and the layout of plain ones."""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from typing import Any, Final, NamedTuple

FIXED: Final = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint8": struct.Struct(">B"),
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "uint64": struct.Struct(">Q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
    "error_code": struct.Struct(">h"),
}
"""The layout of fixed-size values, by the protocol's name of their type."""


class Shape(NamedTuple):
    is_array: bool
    optional: bool
    """Whether the field, or for an array the array itself, may be null."""
    schema: type | None
    """The schema of the structure, or of the structures in the array; None for plain values."""


def shape_of(hint: Any) -> Shape:
    hint, optional = _without_none(hint)
    is_array = typing.get_origin(hint) is tuple
    if is_array:
        hint, _ = _without_none(typing.get_args(hint)[0])
    schema = hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
    return Shape(is_array, optional, schema)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None)), True
    return hint, False
