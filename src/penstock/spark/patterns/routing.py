"""Routing single events to topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark.values.encoding import is_raw, key_column
from penstock.spark.values.json_text import json_object


def route(
    frame: DataFrame,
    topics: Mapping[str, Column | str],
    *,
    otherwise: str | None,
    key: str | Sequence[str] | Column | None = None,
) -> DataFrame:
    """Records that name their topic: for each row, the first one whose condition holds.

    Rows that match no condition go to the topic `otherwise`; None drops them. Rows that are already records (a `value`
    of bytes or text, and only columns of records) are unchanged; other rows become one JSON object each, with the
    `key`. Write them with `TopicTarget(url, None)`: all topics in one query, with one guarantee.
    """
    to = F.lit(otherwise)
    for topic, condition in reversed(_conditions(topics)):
        to = F.when(condition, F.lit(topic)).otherwise(to)
    if is_raw(frame.schema):
        made = key_column(frame, key)
        routed = (frame if made is None else frame.withColumn("key", made)).withColumn("topic", to)
    else:
        value = json_object([frame[f"`{name}`"] for name in frame.columns]).cast("binary")
        made = key_column(frame, key)
        routed = frame.select(
            (F.lit(None).cast("binary") if made is None else made).alias("key"), value.alias("value"), to.alias("topic")
        )
    return routed if otherwise is not None else routed.where("topic is not null")


def split(frame: DataFrame, parts: Mapping[str, Column | str]) -> dict[str, DataFrame]:
    """The rows that match each condition, by name. A row may be in several parts, or in none.

    Each part that is written is a separate query that reads the input again: for many parts, use `route`.
    """
    return {name: frame.where(condition) for name, condition in _conditions(parts)}


def _conditions(named: Mapping[str, Column | str]) -> list[tuple[str, Column]]:
    if not named or not all(named):
        raise ConfigError("there are no conditions: give at least one name with its condition")
    return [(name, F.expr(when) if isinstance(when, str) else when) for name, when in named.items()]
