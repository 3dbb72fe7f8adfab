"""State that belongs to one key, and stays with the task that has the key: the least, the greatest, the average."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def summary(frame: DataFrame, by: str | Column | Sequence[str | Column], column: str) -> DataFrame:
    """For each key, and each window if one is among `by`: how many values a column has, their least, their greatest and
    their average, as `count`, `min`, `max` and `average`.

    Without a window it covers all time and changes with every event: write it in mode "update". With one, and a
    watermark, the default mode gives each window once, when it has closed.
    """
    keys = [by] if isinstance(by, str | Column) else list(by)
    return frame.groupBy(*keys).agg(
        F.count(column).alias("count"),
        F.min(column).alias("min"),
        F.max(column).alias("max"),
        F.avg(column).alias("average"),
    )
