"""Conversion of state and output rows between Python types and Spark schemas."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
    _make_type_verifier,
)

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.serde.forms.python_types import form_of_type
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.values.types import column_of

_KEPT_AS_THEY_ARE: Final = (bytes, bytearray, datetime.datetime, datetime.date, decimal.Decimal)
VALUE: Final = "value"
"""The only column of a value without fields."""


class Shape:
    """Converts values of one type to rows and back.

    The type is a dataclass, a msgspec type, a NamedTuple or a scalar such as float; or a StructType, for rows.
    """

    def __init__(self, described: Any, what: str) -> None:
        self._what = what
        self._kind = None if isinstance(described, DataType) else described
        column = described if isinstance(described, DataType) else _column_of(described, what)
        self._is_record = isinstance(column, StructType)
        fields = column if isinstance(column, StructType) else StructType([StructField(VALUE, column)])
        self.schema = without_watermarks(fields)
        self._verify = _make_type_verifier(self.schema, name=what)

    def encode(self, value: Any) -> Row:
        """The value as a row of the schema. SchemaMismatchError names the field that does not fit."""
        if self._kind is not None:
            value = msgspec.to_builtins(value, builtin_types=_KEPT_AS_THEY_ARE)
        row = _to_spark(value if self._is_record else (value,), self.schema, self._what)
        try:
            self._verify(row)
        except Exception as error:
            raise SchemaMismatchError(f"{self._what}: {error}") from error
        assert isinstance(row, Row)
        return row

    def hashed(self, kept: tuple[Any, ...]) -> Hashable:
        """The same for equal rows, whether encoded here or returned by Spark, to find them in a dict."""
        return _hashed(_from_spark(kept, self.schema))

    def decode(self, kept: tuple[Any, ...]) -> Any:
        row = _from_spark(kept, self.schema)
        if self._kind is None:
            return row if self._is_record else row[0]
        plain = _plain(row)
        return msgspec.convert(plain if self._is_record else plain[VALUE], self._kind, builtin_types=_KEPT_AS_THEY_ARE)


def from_arrow(value: Any, kind: DataType) -> Any:
    """A cell of Spark's input rows with Rows and dicts: Spark passes structs as dicts, and maps as lists of pairs."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return Row(*kind.names)(*(from_arrow(value[field.name], field.dataType) for field in kind.fields))
    if isinstance(kind, ArrayType):
        return [from_arrow(each, kind.elementType) for each in value] if is_nested(kind.elementType) else value
    if isinstance(kind, MapType):
        return {from_arrow(key, kind.keyType): from_arrow(each, kind.valueType) for key, each in value}
    return value


def for_arrow(value: Any, kind: DataType) -> Any:
    """A cell of output rows as Spark expects it: maps as lists of pairs, the inverse of `from_arrow`."""
    if value is None or not is_nested(kind):
        return value
    if isinstance(kind, StructType):
        return Row(*kind.names)(
            *(for_arrow(cell, each.dataType) for cell, each in zip(value, kind.fields, strict=True))
        )
    if isinstance(kind, ArrayType):
        return [for_arrow(each, kind.elementType) for each in value]
    assert isinstance(kind, MapType)
    return [(for_arrow(key, kind.keyType), for_arrow(each, kind.valueType)) for key, each in value.items()]


def is_nested(kind: DataType) -> bool:
    """Whether the type contains a struct or a map."""
    if isinstance(kind, ArrayType):
        return is_nested(kind.elementType)
    return isinstance(kind, StructType | MapType)


def _column_of(kind: Any, what: str) -> DataType:
    if isinstance(kind, str):
        raise ConfigError(f"{what}: {kind!r} is a string: give a type such as a dataclass or float, or a StructType")
    try:
        column: DataType = column_of(form_of_type(kind)[0])
        return column
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _to_spark(value: Any, kind: DataType, what: str) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        fields = _fields_of(value, kind, what)
        cells = [_to_spark(fields.get(field.name), field.dataType, f"{what}.{field.name}") for field in kind.fields]
        return Row(*kind.names)(*cells)
    if isinstance(kind, ArrayType):
        return [_to_spark(each, kind.elementType, what) for each in value]
    if isinstance(kind, MapType):
        return {
            _to_spark(key, kind.keyType, what): _to_spark(each, kind.valueType, what) for key, each in value.items()
        }
    if isinstance(kind, TimestampType) and isinstance(value, datetime.datetime) and value.tzinfo is None:
        raise SchemaMismatchError(
            f"{what}: the time {value.isoformat()} has no time zone: add one, such as datetime.UTC"
        )
    if isinstance(kind, StringType) and not isinstance(value, str):
        # Spark would accept any object and write its repr.
        raise SchemaMismatchError(f"{what}: {value!r} must be a string")
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(kind, DoubleType | FloatType) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _fields_of(value: Any, kind: StructType, what: str) -> Mapping[str, Any]:
    """The fields of a row in any of its forms. Raises SchemaMismatchError for a field that is not in the schema."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        fields = dict(zip(value.__fields__, value, strict=True))
    elif isinstance(value, Mapping):
        fields = dict(value)
    elif hasattr(value, "_asdict"):
        fields = value._asdict()
    elif isinstance(value, tuple):
        if len(value) != len(kind.names):
            raise SchemaMismatchError(f"{what}: {len(value)} values for the columns {', '.join(kind.names)}")
        return dict(zip(kind.names, value, strict=True))
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        raise SchemaMismatchError(f"{what}: {value!r} must be a dict, a Row, a tuple or a dataclass")
    unknown = fields.keys() - set(kind.names)
    if unknown:
        raise SchemaMismatchError(
            f"{what}: there is no column {', '.join(sorted(unknown))}; the columns are {', '.join(kind.names)}"
        )
    return fields


def _from_spark(value: Any, kind: DataType) -> Any:
    """Spark's value with times in UTC: Spark returns naive times in the machine's time zone."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        cells = [_from_spark(cell, field.dataType) for cell, field in zip(value, kind.fields, strict=True)]
        return Row(*kind.names)(*cells)
    if isinstance(kind, ArrayType):
        return [_from_spark(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {_from_spark(key, kind.keyType): _from_spark(each, kind.valueType) for key, each in value.items()}
    if isinstance(kind, TimestampType):
        return value.astimezone(datetime.UTC)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _plain(cell) for name, cell in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def _hashed(value: Any) -> Hashable:
    if isinstance(value, tuple | list):
        return tuple(map(_hashed, value))
    if isinstance(value, dict):
        return frozenset((_hashed(key), _hashed(each)) for key, each in value.items())
    if isinstance(value, float):
        return value.hex()  # NaN equals itself here, as in Spark's keys
    hashable: Hashable = bytes(value) if isinstance(value, bytearray) else value
    return hashable
