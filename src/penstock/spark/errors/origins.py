"""The record that a row was made from, as a column of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

ORIGIN = ("partition", "pointer", "topic")
"""The columns of a record that say where it is, in the order of the text."""

HIDDEN: Final = "penstock_guard_"
"""The beginning of the names of columns that guards add."""
CARRIED: Final = "penstock_origin"
"""The name of a column with that text that functions of the program do not see."""


def origin_names(columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns of `ORIGIN` among these, with the names that they have beside fields of the same name; None if one is
    missing."""
    names = tuple(f"record_{name}" if f"record_{name}" in columns else name for name in ORIGIN)
    return names if all(columns.count(name) == 1 for name in names) else None


def origin_column(frame: DataFrame) -> Column:
    """The place of the record of each row, such as `0/17/orders`; null in frames without the columns of records."""
    names = origin_names(frame.columns)
    if names is None:
        return F.lit(None).cast("string")
    return F.concat_ws("/", *(frame[f"`{name}`"].cast("string") for name in names))


def origin_text(topic: str, partition: int, pointer: int | str) -> str:
    """The place of one record, as `origin_column` has it."""
    return f"{partition}/{pointer}/{topic}"


def parsed_origin(origin: str) -> tuple[str, int, int]:
    """Topic, partition and pointer."""
    partition, pointer, topic = origin.split("/", 2)
    return topic, int(partition), int(pointer)


def place_of(origin: str) -> str:
    """The place of a record in words."""
    topic, partition, pointer = parsed_origin(origin)
    return f"{topic} partition {partition} offset {pointer}"
