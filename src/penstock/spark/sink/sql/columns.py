"""From the columns of a frame to columns of a database."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import SchemaMismatchError


class Kind(enum.Enum):
    """The kind of values in a column, with its name in messages."""

    TEXT = "text"
    BOOLEAN = "a boolean"
    SHORT = "a 16-bit integer"
    INTEGER = "a 32-bit integer"
    LONG = "a 64-bit integer"
    FLOAT = "a 32-bit float"
    DOUBLE = "a 64-bit float"
    DECIMAL = "a decimal"
    DATE = "a date"
    TIMESTAMP_TZ = "a timestamp with time zone"
    TIMESTAMP = "a timestamp without time zone"
    BYTES = "bytes"
    JSON = "JSON"


_KINDS: Final[Mapping[type[DataType], Kind]] = {
    StringType: Kind.TEXT,
    BooleanType: Kind.BOOLEAN,
    ByteType: Kind.SHORT,
    ShortType: Kind.SHORT,
    IntegerType: Kind.INTEGER,
    LongType: Kind.LONG,
    FloatType: Kind.FLOAT,
    DoubleType: Kind.DOUBLE,
    DecimalType: Kind.DECIMAL,
    DateType: Kind.DATE,
    TimestampType: Kind.TIMESTAMP_TZ,
    TimestampNTZType: Kind.TIMESTAMP,
    BinaryType: Kind.BYTES,
    ArrayType: Kind.JSON,
    MapType: Kind.JSON,
    StructType: Kind.JSON,
}
_MADE_BY: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    Kind.TEXT: str,
    Kind.BOOLEAN: bool,
    Kind.SHORT: int,
    Kind.INTEGER: int,
    Kind.LONG: int,
    Kind.FLOAT: float,
    Kind.DOUBLE: float,
    Kind.BYTES: bytes,
}
_DECIMAL: Final = re.compile(r"numeric\((?P<precision>\d+),(?P<scale>-?\d+)\)")


@dataclass(frozen=True, slots=True)
class SqlColumn:
    name: str
    kind: Kind
    precision: int = 0
    """Precision and scale of a decimal."""
    scale: int = 0

    def fits_numeric(self, declared: str) -> bool:
        """Whether a numeric column stores every value of this decimal column with all of its digits."""
        found = _DECIMAL.fullmatch(declared)
        if found is None:
            return True
        whole = int(found["precision"]) - int(found["scale"])
        return int(found["scale"]) >= self.scale and whole >= self.precision - self.scale


def columns_of(schema: StructType, what: str) -> tuple[SqlColumn, ...]:
    """The columns of a frame. Raises SchemaMismatchError for a type that has no counterpart in a table."""
    found = []
    for field in schema:
        kind = _KINDS.get(type(field.dataType))
        if kind is None and isinstance(field.dataType, StringType):  # char(n) and varchar(n)
            kind = Kind.TEXT
        if kind is None:
            raise SchemaMismatchError(
                f"{what}: column {field.name!r} is {field.dataType.simpleString()}, which a table cannot store: cast "
                "it to another type, or drop it"
            )
        decimal = field.dataType if isinstance(field.dataType, DecimalType) else None
        digits = (decimal.precision, decimal.scale) if decimal is not None else (0, 0)
        found.append(SqlColumn(field.name, kind, *digits))
    names = [column.name.lower() for column in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaMismatchError(f"{what}: there are two columns {twice[0]!r}: rename one")
    return tuple(found)


def plain(frame: DataFrame) -> DataFrame:
    """The frame with arrays, maps and structs as JSON."""
    return frame.select(
        *(
            sql.to_json(frame[field.name]).alias(field.name)
            if _KINDS.get(type(field.dataType)) is Kind.JSON
            else frame[field.name]
            for field in frame.schema
        )
    )


def plain_values(column: pa.Array, kind: Kind) -> list[Any]:
    """The values of a column, with timestamps as ISO text (in UTC if they have a zone), dates and decimals as text."""
    if kind is Kind.TIMESTAMP_TZ:
        column = pc.strftime(column.cast(pa.timestamp("us", "UTC")), "%Y-%m-%dT%H:%M:%S+00:00")
    elif kind is Kind.TIMESTAMP:
        column = pc.strftime(column, "%Y-%m-%dT%H:%M:%S")
    elif kind in (Kind.DATE, Kind.DECIMAL):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


def stored_value(value: Any, kind: Kind) -> Any:
    """A value that a database returns for a column: a Python value of this kind, times in UTC."""
    if value is None:
        return None
    if kind in (Kind.TIMESTAMP_TZ, Kind.TIMESTAMP):
        moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if kind is Kind.TIMESTAMP else moment.astimezone(datetime.UTC)
    if kind is Kind.DATE:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value
    if kind is Kind.DECIMAL:
        return value if isinstance(value, decimal.Decimal) else decimal.Decimal(str(value))
    return _MADE_BY[kind](value)


def json_rows(batch: pa.RecordBatch, columns: Sequence[SqlColumn]) -> list[bytes]:
    """Each row as a JSON object: timestamps and decimals as text, bytes as base64, NaN and infinity as text."""
    made = [
        [_json_value(value, column.kind) for value in plain_values(batch.column(index), column.kind)]
        for index, column in enumerate(columns)
    ]
    names = [column.name for column in columns]
    return [msgspec.json.encode(dict(zip(names, row, strict=True))) for row in zip(*made, strict=True)]


def _json_value(value: Any, kind: Kind) -> Any:
    if kind is Kind.JSON and value is not None:
        return msgspec.Raw(value.encode())
    if isinstance(value, float) and not math.isfinite(value):  # as Spark writes them
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
