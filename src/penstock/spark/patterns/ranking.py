"""Aggregation: summaries by key, and the top rows of each window across all keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.values.columns import require_columns

MOST: Final = 10_000
"""The rows of a window are ranked in one task."""


def top_n(
    frame: DataFrame, n: int, by: str | Column, *, per: str | Sequence[str] = "window", ascending: bool = False
) -> DataFrame:
    """The first `n` rows of each window by a column, with their `rank` from 1.

    It is the second of two stages. The first aggregates each key of a window to one row, in parallel; this one combines
    the rows of each window in one task:

        moves = on_time.groupBy(tumbling("at", "1 day"), "symbol").agg(...)
        top_n(moves, 10, by=F.abs("change"))

    Both run in append mode: a window is ranked once, when it has closed. Rows with equal `by` are ranked by their other
    columns, so that a repeated batch has the same result; rows with a null are not ranked. `per` names the columns of
    the groups that are ranked separately.
    """
    windows = [per] if isinstance(per, str) else list(per)
    require_columns(frame.columns, windows, " to rank by")
    if not 1 <= n <= MOST:
        raise ConfigError(f"n={n} is not allowed: rank between 1 and {MOST} rows")
    others = [name for name in frame.columns if name not in windows]
    if "rank" in windows + others:
        raise SchemaMismatchError("the frame already has a column `rank`: rename it")
    score = F.col(by) if isinstance(by, str) else by
    rows = frame.select(*windows, F.struct(score.alias("score"), F.struct(*others).alias("row")).alias("ranked"))
    kept = F.collect_list(F.when(F.col("ranked.score").isNotNull(), F.col("ranked")))
    sorted_rows = F.sort_array(kept, asc=ascending)
    best = rows.groupBy(*windows).agg(F.slice(sorted_rows, 1, n).alias("best"))
    placed = best.select(*windows, F.posexplode("best").alias("place", "ranked"))
    return placed.select(*windows, (F.col("place") + 1).alias("rank"), "ranked.row.*")


def summary(frame: DataFrame, by: str | Column | Sequence[str | Column], column: str) -> DataFrame:
    """`count`, `min`, `max` and `average` of a column for each key, and each window if one is in `by`.

    Without a window, the result covers all time and changes with every event: write it in mode "update". With a window
    and a watermark, the default mode emits each window once, when it has closed.
    """
    keys = [by] if isinstance(by, str | Column) else list(by)
    return frame.groupBy(*keys).agg(
        F.count(column).alias("count"),
        F.min(column).alias("min"),
        F.max(column).alias("max"),
        F.avg(column).alias("average"),
    )
