"""From a frame as users have it to the columns of `WRITTEN`, with the idempotency key among the headers."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.columns import HEADERS, WRITTEN

IDEMPOTENCY_KEY_HEADER: Final = "penstock-idempotency-key"
"""Where the idempotency key of a record stands. A consumer takes each key once that is declared with
`idempotency_key="header:penstock-idempotency-key"`."""


def is_written(schema: StructType) -> bool:
    """Whether the columns are those of records already: a value in bytes or text, and no other than those."""
    types = {field.name: field.dataType for field in schema}
    return (
        isinstance(types.get("value"), BinaryType | StringType)
        and types.keys() <= set(WRITTEN.names)
        and all(_fits(types[field.name], field.dataType) for field in WRITTEN if field.name in types)
    )


def as_written(frame: DataFrame) -> DataFrame:
    """Exactly the columns of `WRITTEN`, in their order; what is missing is null."""
    return frame.select(
        *(
            (frame[field.name] if field.name in frame.columns else sql.lit(None)).cast(field.dataType).alias(field.name)
            for field in WRITTEN
        )
    )


def check_idempotency_key(schema: StructType, column: str) -> None:
    if column not in schema.names:
        raise SchemaMismatchError(
            f"there is no column {column!r} for the idempotency key; there are {', '.join(schema.names)}"
        )
    kind = schema[column].dataType
    if not isinstance(kind, StringType | BinaryType | IntegralType):
        raise ConfigError(
            f"column {column!r} cannot be an idempotency key: it is {kind.simpleString()}; make text or a whole number "
            "of it"
        )


def with_idempotency_header(headers: Column | None, key: Column) -> Column:
    """Headers with the idempotency key behind those that are there; a row whose key is null has none."""
    pair = sql.struct(
        sql.lit(IDEMPOTENCY_KEY_HEADER).alias("key"), key.cast(StringType()).cast(BinaryType()).alias("value")
    )
    before = sql.lit(None).cast(HEADERS) if headers is None else headers
    empty = sql.array().cast(HEADERS)
    return sql.when(key.isNull(), before).otherwise(
        sql.concat(sql.coalesce(before, empty), sql.array(pair).cast(HEADERS))
    )


def _fits(given: DataType, wanted: DataType) -> bool:
    if isinstance(wanted, BinaryType):
        return isinstance(given, BinaryType | StringType)
    return given.simpleString() == wanted.simpleString()
