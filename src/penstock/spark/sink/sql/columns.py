"""Columns of frames in databases: what each is there, which existing ones it fits, and what has no place in a table."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    """What a column holds, as far as databases are concerned."""

    TEXT = "text"
    BOOLEAN = "a truth value"
    SHORT = "a whole number of 16 bits"
    INTEGER = "a whole number of 32 bits"
    LONG = "a whole number of 64 bits"
    FLOAT = "a number of 32 bits"
    DOUBLE = "a number of 64 bits"
    DECIMAL = "a decimal number"
    DATE = "a date"
    MOMENT = "a time with a zone"
    WALL_TIME = "a time without a zone"
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
    TimestampType: Kind.MOMENT,
    TimestampNTZType: Kind.WALL_TIME,
    BinaryType: Kind.BYTES,
    ArrayType: Kind.JSON,
    MapType: Kind.JSON,
    StructType: Kind.JSON,
}
_DECIMAL: Final = re.compile(r"numeric\((?P<precision>\d+),(?P<scale>-?\d+)\)")


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of the rows that are written."""

    name: str
    kind: Kind
    precision: int = 0
    """Of a decimal number: its digits, and how many of them stand behind the point."""
    scale: int = 0

    def fits_numeric(self, declared: str) -> bool:
        """Whether each value of this decimal column can be kept by a numeric one, and with all of its digits."""
        found = _DECIMAL.fullmatch(declared)
        if found is None:
            return True
        whole = int(found["precision"]) - int(found["scale"])
        return int(found["scale"]) >= self.scale and whole >= self.precision - self.scale


def columns_of(schema: StructType, what: str) -> tuple[SqlColumn, ...]:
    """The columns of a frame. SchemaMismatchError for one that no table can hold."""
    found = []
    for field in schema:
        kind = _KINDS.get(type(field.dataType))
        if kind is None and isinstance(field.dataType, StringType):  # char(n) and varchar(n)
            kind = Kind.TEXT
        if kind is None:
            raise SchemaMismatchError(
                f"{what}: column {field.name!r} is {field.dataType.simpleString()}, which has no place in a table: "
                "cast it to something else, or leave it away"
            )
        if isinstance(field.dataType, DecimalType):
            found.append(SqlColumn(field.name, kind, field.dataType.precision, field.dataType.scale))
        else:
            found.append(SqlColumn(field.name, kind))
    names = [column.name.lower() for column in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaMismatchError(f"{what}: there are two columns {twice[0]!r}; rename one of them")
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
