"""Columns as JSON and as keys, by Spark's own expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, VarcharType

JSON_OPTIONS: Final[Mapping[str, str]] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
"""Timestamps as RFC 3339 in UTC, bytes as base64, nulls as null."""

_AS_THEY_ARE: Final = (BinaryType, StringType, CharType, VarcharType)
_HEAD: Final = len('{"k":')


def json_object(columns: Sequence[Column]) -> Column:
    """A JSON object of these columns, by name."""
    return F.to_json(F.struct(*columns), dict(JSON_OPTIONS))


def json_value(column: Column) -> Column:
    """The JSON of one column, whatever its type; `null` for null."""
    text = F.to_json(F.struct(column.alias("k")), dict(JSON_OPTIONS))
    return F.substring(text, F.lit(_HEAD + 1), F.length(text) - _HEAD - 1)


def key_of(column: Column, found: DataType) -> Column:
    """A key from one column: text and bytes as they are, other types as JSON; null stays null.

    Text, bytes, integers, booleans and dates become the same bytes as in the library, so that records with equal keys
    are in the same partition, whoever sends them.
    """
    if isinstance(found, _AS_THEY_ARE):
        return column.cast("binary")
    return F.when(column.isNotNull(), json_value(column)).cast("binary")


def key_of_several(columns: Sequence[Column]) -> Column:
    """A key from several columns: a JSON array, as the library writes a tuple."""
    return F.concat(F.lit("["), F.concat_ws(",", *map(json_value, columns)), F.lit("]")).cast("binary")
