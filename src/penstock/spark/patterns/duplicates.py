"""Removing duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from penstock.errors import ConfigError
from penstock.spark.late.watermarks import has_watermark
from penstock.spark.values.columns import record_column, require_columns

IDEMPOTENCY_KEY: Final = "idempotency_key"
_DISTINCT: Final = "_told_apart"


def without_duplicates(frame: DataFrame, by: str | Sequence[str]) -> DataFrame:
    """Drop rows whose key `by` was seen before, within the grace of the frame's watermark.

    A key is forgotten once the watermark has passed its first row by the grace: make the grace as long as duplicates
    can be apart. Which of two rows in one batch is kept is undefined. Rows with a null in `by` are all kept.
    """
    keys = [by] if isinstance(by, str) else list(by)
    require_columns(frame.columns, keys, " to identify rows by", at_least_one=True)
    if not frame.isStreaming:
        return _first_of_each(frame, keys)
    if not any(has_watermark(frame, name) for name in frame.columns):
        raise ConfigError(
            "without a watermark, every key would be kept forever: use pipe.on_time(frame, time, grace=...), with a"
            " grace as long as duplicates can be apart"
        )
    distinct = frame.withColumn(_DISTINCT, F.when(~_all_present(keys), _row_id(frame)))
    return distinct.dropDuplicatesWithinWatermark([*keys, _DISTINCT]).drop(_DISTINCT)


def by_idempotency_key(frame: DataFrame, key: str = "key") -> DataFrame:
    """The frame with a column `idempotency_key`: "key" is the record's key, "header:NAME" one of its headers."""
    if key == "key":
        name = record_column(frame.columns, "key")
        is_binary = isinstance(frame.schema[name].dataType, BinaryType)
        column = F.hex(F.col(name)) if is_binary else F.col(name)
    elif key.startswith("header:"):
        name = key.removeprefix("header:")
        found = F.filter(F.col(record_column(frame.columns, "headers")), lambda header: _named(header, name))
        column = F.try_element_at(found, F.lit(1))["value"].cast("string")
    else:
        raise ConfigError(f'key={key!r} is not allowed: use "key" or "header:NAME"')
    return frame.withColumn(IDEMPOTENCY_KEY, column)


def _row_id(frame: DataFrame) -> Column:
    if {"topic", "partition", "pointer"} <= set(frame.columns):
        return F.concat_ws("/", "topic", "partition", "pointer")
    return F.expr("uuid()")


def _named(header: Column, name: str) -> Column:
    return (header["key"] == name) & header["value"].isNotNull()


def _all_present(keys: Sequence[str]) -> Column:
    present = F.lit(True)
    for key in keys:
        present = present & F.col(f"`{key}`").isNotNull()
    return present


def _first_of_each(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    known = _all_present(keys)
    return frame.where(known).dropDuplicates(list(keys)).unionByName(frame.where(~known))
