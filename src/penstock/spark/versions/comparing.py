"""Comparison of the results of two versions by a batch job of Spark, for results of any size.

Results that change are compared by the last value of each key. Final results are compared as multisets of records,
regardless of their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from penstock.spark.versions.names import By

Kind = Literal["same", "only_old", "only_new", "different"]
KINDS: Final[tuple[Kind, ...]] = ("same", "only_old", "only_new", "different")
EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Example:
    """A key or a record that differs; None stands for a missing value."""

    kind: Kind
    key: bytes | None
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many keys or records of one output are equal in two versions, and how many differ."""

    by: By
    same: int
    only_old: int
    only_new: int
    different: int
    """Keys whose values differ. A record that differs counts in `only_old` and `only_new` instead."""
    examples: tuple[Example, ...] = ()

    @property
    def is_same(self) -> bool:
        return not (self.only_old or self.only_new or self.different)


def compare(old: DataFrame, new: DataFrame, by: By, examples: int = EXAMPLES) -> Comparison:
    """Compare two topics, read as batches with the columns of a record."""
    joined = _by_key(old, new) if by == "key" else _by_record(old, new)
    joined = joined.persist(StorageLevel.DISK_ONLY)
    try:
        totals = joined.groupBy("kind").agg(F.sum("n").alias("total")).collect()
        counts = {str(row["kind"]): int(row["total"]) for row in totals}
        shown = [
            _example(row)
            for kind in KINDS
            if kind != "same" and counts.get(kind)
            for row in joined.where(F.col("kind") == kind).orderBy("key", "old", "new").limit(examples).collect()
        ]
    finally:
        joined.unpersist()
    same, only_old, only_new, different = (counts.get(kind, 0) for kind in KINDS)
    return Comparison(by, same, only_old, only_new, different, tuple(shown))


def _by_key(old: DataFrame, new: DataFrame) -> DataFrame:
    """One row for each key of either version: how its last values compare, and the values if they differ."""
    both = _last(old).alias("old").join(_last(new).alias("new"), F.col("old.key").eqNullSafe(F.col("new.key")), "full")
    old_value, new_value = F.col("old.value"), F.col("new.value")
    kind = (
        F.when(old_value.isNull(), F.lit("only_new"))
        .when(new_value.isNull(), F.lit("only_old"))
        .when(old_value == new_value, F.lit("same"))
        .otherwise(F.lit("different"))
    )
    key = F.coalesce(F.col("old.key"), F.col("new.key"))
    return both.select(
        key.alias("key"),
        F.when(kind != "same", old_value).alias("old"),
        F.when(kind != "same", new_value).alias("new"),
        kind.alias("kind"),
        F.lit(1).alias("n"),
    )


def _last(records: DataFrame) -> DataFrame:
    """The last value of each key, without keys whose last value is null.

    Within a partition, the last record has the greatest pointer. A key is in several partitions only if their number
    has grown: then the timestamp decides.
    """
    within = records.groupBy("key", "partition").agg(
        F.max_by(F.struct("value", "timestamp"), F.col("pointer")).alias("last")
    )
    across = within.groupBy("key").agg(F.max_by(F.col("last.value"), F.col("last.timestamp")).alias("value"))
    return across.where(F.col("value").isNotNull())


def _by_record(old: DataFrame, new: DataFrame) -> DataFrame:
    """Up to two rows for each record: how often it is in both versions, and how often only in one."""
    counted = (
        old.select("key", "value", F.lit(1).alias("in_old"), F.lit(0).alias("in_new"))
        .unionByName(new.select("key", "value", F.lit(0).alias("in_old"), F.lit(1).alias("in_new")))
        .groupBy("key", "value")
        .agg(F.sum("in_old").alias("in_old"), F.sum("in_new").alias("in_new"))
    )
    in_old, in_new = F.col("in_old"), F.col("in_new")
    found = F.array(
        _found("same", F.least(in_old, in_new)),
        _found("only_old", in_old - in_new),
        _found("only_new", in_new - in_old),
    )
    rows = counted.select("key", "value", F.explode(found).alias("found")).where(F.col("found.n") > 0)
    kind = F.col("found.kind")
    return rows.select(
        "key",
        F.when(kind == "only_old", F.col("value")).alias("old"),
        F.when(kind == "only_new", F.col("value")).alias("new"),
        kind.alias("kind"),
        F.col("found.n").alias("n"),
    )


def _found(kind: Kind, count: Column) -> Column:
    return F.struct(F.lit(kind).alias("kind"), count.alias("n"))


def _example(row: Any) -> Example:
    return Example(row["kind"], *(None if row[name] is None else bytes(row[name]) for name in ("key", "old", "new")))
