"""What comes twice counts once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.watermarks import has_watermark

IDEMPOTENCY_KEY: Final = "idempotency_key"
_TOLD_APART: Final = "_told_apart"


def without_duplicates(frame: DataFrame, by: str | Sequence[str]) -> DataFrame:
    """The first row of each key, as long as the second comes within the grace of the frame's watermark.

    What is remembered of a key is forgotten when the watermark has passed its first row by the grace: choose the grace
    as long as duplicates can be apart. Which of two rows in one batch is the first is not defined. Rows without a key
    (null in one of `by`) are no duplicates of each other: all of them stay.
    """
    keys = [by] if isinstance(by, str) else list(by)
    missing = [name for name in keys if name not in frame.columns]
    if missing or not keys:
        raise SchemaMismatchError(
            f"no column {', '.join(missing)} to tell rows apart by: there are {', '.join(frame.columns)}"
        )
    if not frame.isStreaming:
        return _first_of_each(frame, keys)
    if not any(has_watermark(frame, name) for name in frame.columns):
        raise ConfigError(
            "without a watermark every key would be remembered for ever: use pipe.on_time(frame, time, grace=...), with"
            " a grace as long as duplicates can be apart"
        )
    told_apart = frame.withColumn(_TOLD_APART, F.when(~_all_present(keys), _place(frame)))
    return told_apart.dropDuplicatesWithinWatermark([*keys, _TOLD_APART]).drop(_TOLD_APART)


def by_idempotency_key(frame: DataFrame, key: str = "key") -> DataFrame:
    """The frame with a column `idempotency_key`, as the library's consumers understand one: "key" is the record's key,
    "header:NAME" one of its headers."""
    if key == "key":
        column = F.hex(F.col(_about(frame, "key"))) if _is_binary(frame, "key") else F.col(_about(frame, "key"))
    elif key.startswith("header:"):
        name = key.removeprefix("header:")
        found = F.filter(F.col(_about(frame, "headers")), lambda header: _named(header, name))
        column = F.try_element_at(found, F.lit(1))["value"].cast("string")
    else:
        raise ConfigError(f'key={key!r} is no idempotency key: use "key" or "header:NAME"')
    return frame.withColumn(IDEMPOTENCY_KEY, column)


def _place(frame: DataFrame) -> Column:
    """What no two rows have in common."""
    if {"topic", "partition", "pointer"} <= set(frame.columns):
        return F.concat_ws("/", "topic", "partition", "pointer")
    return F.expr("uuid()")


def _named(header: Column, name: str) -> Column:
    return (header["key"] == name) & header["value"].isNotNull()


def _about(frame: DataFrame, name: str) -> str:
    for column in (f"record_{name}", name):
        if column in frame.columns:
            return column
    raise SchemaMismatchError(f"there is no column {name!r} of the record: take it along when you select others")


def _is_binary(frame: DataFrame, name: str) -> bool:
    return frame.schema[_about(frame, name)].dataType.simpleString() == "binary"


def _all_present(keys: Sequence[str]) -> Column:
    present = F.lit(True)
    for key in keys:
        present = present & F.col(f"`{key}`").isNotNull()
    return present


def _first_of_each(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    known = _all_present(keys)
    return frame.where(known).dropDuplicates(list(keys)).unionByName(frame.where(~known))
