"""Several stages, each with fewer rows than the one before: the best of each window, of all keys together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError

MOST: Final = 10_000
"""They are ranked in one place."""


def top_n(
    frame: DataFrame, n: int, by: str | Column, *, per: str | Sequence[str] = "window", ascending: bool = False
) -> DataFrame:
    """The `n` rows of each window that are first by a column, with their `rank` from 1 on.

    It is the last of two stages. The first makes one row of everything that a key did in a window, in as many tasks as
    there are; this one brings those together, by window, into one:

        moves = on_time.groupBy(tumbling("at", "1 day"), "symbol").agg(...)
        top_n(moves, 10, by=F.abs("change"))

    Both run in append mode: a window is ranked once, when it has closed. Rows that are equal in `by` are ranked by
    their other columns, so that a batch that is repeated gives the same; null is never among the first. `per` names
    what is ranked for itself.
    """
    windows = [per] if isinstance(per, str) else list(per)
    missing = [name for name in windows if name not in frame.columns]
    if missing:
        raise SchemaMismatchError(f"no column {', '.join(missing)} to rank by: there are {', '.join(frame.columns)}")
    if not 1 <= n <= MOST:
        raise ConfigError(f"n={n} is not allowed: rank between 1 and {MOST} rows")
    others = [name for name in frame.columns if name not in windows]
    if "rank" in windows + others:
        raise SchemaMismatchError("the frame has a column `rank` already: rename it")
    score = F.col(by) if isinstance(by, str) else by
    rows = frame.select(*windows, F.struct(score.alias("score"), F.struct(*others).alias("row")).alias("ranked"))
    kept = F.collect_list(F.when(F.col("ranked.score").isNotNull(), F.col("ranked")))
    sorted_rows = F.sort_array(kept, asc=ascending)
    best = rows.groupBy(*windows).agg(F.slice(sorted_rows, 1, n).alias("best"))
    placed = best.select(*windows, F.posexplode("best").alias("place", "ranked"))
    return placed.select(*windows, (F.col("place") + 1).alias("rank"), "ranked.row.*")
