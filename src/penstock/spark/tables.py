"""Streams as tables and back: a table is the result of a stream of changes, and its changes are a stream.

users = as_table(debezium(read_batch(...), User, key=["id"]), "id")      # the rows of a table, as of now
changed = changes(pipe.read("users"), "id")                              # each change, with the row before it
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.serde.forms.python_types import form_of_type
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import ABOUT_A_RECORD, require_columns
from penstock.spark.values.encoding import key_column
from penstock.spark.values.json_text import json_object
from penstock.spark.values.types import column_of
from penstock.tables.changes import TRUNCATE_KEY, TRUNCATED

_ABOUT: Final = frozenset((*ABOUT_A_RECORD, *(f"record_{name}" for name in ABOUT_A_RECORD)))
CREATED, UPDATED, DELETED = "c", "u", "d"
"""Debezium's names for changes."""


def as_table(frame: DataFrame, key: str | Sequence[str], *, by: str = "pointer") -> DataFrame:
    """The table after all changes of a batch frame: the last row of each key, without deleted rows.

    The last row has the greatest `by`; the default is the pointer, as all records of a key are in one partition. A row
    is deleted if its column `deleted` is true, as in the result of `debezium`; in a frame without that column, if all
    columns but the key are null, as in a record without a value. A truncate, as `penstock cdc` writes it, deletes all
    earlier rows of its partition, and therefore needs the column `partition`.
    """
    if frame.isStreaming:
        raise ConfigError(
            "a stream has no last row: read the topic with read_batch or Pipeline.table, or use `changes`"
        )
    keys = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, [*keys, by])
    columns = frame.columns
    truncates = _truncates(frame)
    if truncates is not None:
        frame = _without_truncated(frame, truncates, keys, by)
    last = _last(frame, keys, columns, by)
    there = last.where(~deletes(last, keys))
    return there.drop("deleted").select(*(name for name in columns if name != "deleted"))


def _last(frame: DataFrame, keys: Sequence[str], columns: Sequence[str], by: str) -> DataFrame:
    """The row of each combination of `keys` with the greatest `by`."""
    others = [name for name in columns if name not in keys]
    return frame.groupBy(*keys).agg(F.max_by(F.struct(*others), F.col(by)).alias("last")).select(*keys, "last.*")


def _without_truncated(frame: DataFrame, truncates: Column, keys: Sequence[str], by: str) -> DataFrame:
    """Rows that no later truncate of their partition deletes, at most one of each key and partition."""
    columns = frame.columns
    if "partition" not in columns:
        message = "a truncate deletes the rows of its partition: keep the column `partition` for as_table"
        return frame.where(~F.when(truncates, F.raise_error(message).cast("boolean")).otherwise(F.lit(False)))
    marked = frame.withColumn("_truncates", truncates)
    groups = list(dict.fromkeys([*keys, "partition", "_truncates"]))
    last = _last(marked, groups, columns, by) if set(columns) - set(groups) else marked.distinct()
    cut = F.max(F.when(F.col("_truncates"), F.col(by))).over(Window.partitionBy("partition"))
    kept = last.withColumn("_cut", cut).where(
        ~F.col("_truncates") & (F.col("_cut").isNull() | (F.col(by) > F.col("_cut")))
    )
    return kept.select(*columns)


def changes(frame: DataFrame, key: str, *, fields: Sequence[str] | None = None) -> DataFrame:
    """The changes that the records of a stream make to their table: columns key, `op`, `before` and `after`.

    `op` is "c", "u" or "d"; `before` and `after` are structs of the `fields`, null if there is no row. The default for
    `fields` is all columns but the key and those about the record. A record that changes nothing, or deletes a missing
    row, is omitted. The last row of each key is kept as state. Written to a compacted topic with this key and `after`
    as the value, the changes are the table again. A truncate fails the query: it deletes the rows of all keys, and
    each key has its own state.
    """
    chosen = [name for name in frame.columns if name != key and name not in _ABOUT] if fields is None else list(fields)
    chosen = [name for name in chosen if name != "deleted"] if fields is None else chosen
    require_columns(frame.columns, [key, *chosen])
    schema = without_watermarks(frame.schema)
    row = StructType([schema[name] for name in chosen])
    deleted = without_truncates(frame, deletes(frame, [key]))
    flagged = frame.withColumn("_deleted", deleted).withColumn("_row", F.struct(*chosen))
    place = F.col("pointer") if "pointer" in frame.columns else F.lit(None).cast("long")
    slim = flagged.select(F.col(key), "_deleted", "_row", place.alias("_place"))
    given_out = StructType(
        [schema[key], StructField("op", StringType()), StructField("before", row), StructField("after", row)]
    )
    return stateful(slim, key, Changing(key), given_out, state=row)


def as_changelog(frame: DataFrame, key: str | Sequence[str]) -> DataFrame:
    """The records of changes, for a compacted topic: rows as JSON under their `key`, no value for those `deleted`.

        pipe.write(as_changelog(join_tables(orders, customers, "customer"), "customer"), "joined")

    The topic is then a table, for `Pipeline.table`, `ps.Table` and any other reader. `frame` has the column `deleted`,
    as the results of `join_tables` and `debezium`.
    """
    keys = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, [*keys, "deleted"], at_least_one=True)
    row = json_object([frame[f"`{name}`"] for name in frame.columns if name != "deleted"])
    made = key_column(frame, key)
    assert made is not None, "there is a key"
    there = ~F.coalesce(F.col("deleted"), F.lit(False))
    return frame.select(made.alias("key"), F.when(there, row.cast("binary")).alias("value"))


class Changing:
    """The stateful function that computes the changes of one key."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, Any]]:
        before = first = ctx.state.get()
        for row in sorted(rows, key=lambda each: -1 if each["_place"] is None else each["_place"]):
            after = None if row["_deleted"] else row["_row"]
            op = _change(before, after)
            if op is not None:
                yield {self._key: key, "op": op, "before": before, "after": after}
                before = after
        if before is None and first is not None:
            ctx.state.delete()
        elif before is not None and before != first:
            ctx.state.put(before)


def debezium(
    frame: DataFrame, fields: StructType | type[Any], key: Sequence[str] = (), *, value: str = "value"
) -> DataFrame:
    """Rows of a database table from Debezium's change events in JSON, with or without embedded schemas.

    Each change becomes the row after it; a deletion becomes the row before it, as far as the event contains it. A
    truncate (`op` "t") has neither and counts as deleted; `as_table` deletes all earlier rows of its partition. `key`
    names columns that are filled from the record's key if the event lacks them. The columns are the `fields`, `op`,
    `deleted`, `changed_at` (when the database was changed) and those about the record. Tombstones, which follow
    deletions for compaction, are omitted. A record that is not a change event has a null `op`: write
    `where("op is null")` somewhere for inspection.
    """
    row = fields if isinstance(fields, StructType) else column_of(form_of_type(fields)[0])
    if not isinstance(row, StructType):
        raise ConfigError(f"{fields!r} has no fields: describe the rows of the table")
    require_columns(frame.columns, [value])
    about = [name for name in frame.columns if name in _ABOUT]
    reserved = sorted({"op", "deleted", "changed_at", *about} & set(row.names) - _ABOUT)
    if reserved:
        raise SchemaMismatchError(f"the rows must not have columns named {', '.join(reserved)}: rename them first")
    inside = [StructField("before", row), StructField("after", row), StructField("op", StringType())]
    inside += [StructField("ts_ms", LongType()), StructField("source", StructType([StructField("ts_ms", LongType())]))]
    envelope = StructType([*inside, StructField("payload", StructType(inside))])
    parsed = frame.where(F.col(value).isNotNull()).withColumn("_e", F.from_json(F.col(value).cast("string"), envelope))
    key_row = StructType([row[name] for name in key])
    if key:
        keys = StructType([*key_row.fields, StructField("payload", key_row)])
        parsed = parsed.withColumn("_k", F.from_json(F.col("key").cast("string"), keys))

    def part(name: str) -> Column:
        return F.coalesce(F.col(f"_e.payload.{name}"), F.col(f"_e.{name}"))

    def cell(name: str) -> Column:
        known = F.when(part("op") == DELETED, part("before")[name]).otherwise(part("after")[name])
        if name not in key:
            return known.alias(name)
        return F.coalesce(known, F.col(f"_k.payload.{name}"), F.col(f"_k.{name}")).alias(name)

    changed_ms = F.coalesce(part("source.ts_ms"), part("ts_ms"))
    return parsed.select(
        *(cell(name) for name in row.names),
        part("op").alias("op"),
        F.coalesce(part("op").isin(DELETED, TRUNCATED), F.lit(False)).alias("deleted"),
        F.timestamp_millis(changed_ms).alias("changed_at"),
        *(F.col(name).alias(f"record_{name}" if name in row.names else name) for name in about),
    )


def _change(before: Any, after: Any) -> str | None:
    if before == after:
        return None
    if before is None:
        return CREATED
    return DELETED if after is None else UPDATED


def without_truncates(frame: DataFrame, condition: Column) -> Column:
    """The condition, which fails the query at a truncate: state by key cannot tell which rows that deletes."""
    truncates = _truncates(frame)
    if truncates is None:
        return condition
    refused = F.raise_error(
        "the table was truncated, and a query with state by key cannot tell which rows that deleted: read the topic as "
        "a table (Pipeline.table, as_table), or filter truncates, where(\"op <> 't'\"), if these rows may stay"
    )
    return F.when(truncates, refused.cast("boolean")).otherwise(condition)


def _truncates(frame: DataFrame) -> Column | None:
    """Whether each row is a truncate: of `debezium`, of the flat form, or by its key. None: no column could tell."""
    names = set(frame.columns)
    signs = []
    if {"op", "deleted"} <= names:
        signs.append(F.col("op") == TRUNCATED)
    if "__op" in names:
        signs.append(F.col("__op") == TRUNCATED)
    keys = [name for name in ("key", "record_key") if name in names]
    for name in keys:
        kind = frame.schema[name].dataType
        if isinstance(kind, StringType | BinaryType):
            signs.append(F.col(name).cast("string") == TRUNCATE_KEY.decode())
    if not signs:
        return None
    return functools.reduce(Column.__or__, (F.coalesce(sign, F.lit(False)) for sign in signs))


def deletes(frame: DataFrame, keys: Sequence[str]) -> Column:
    """Whether each record deletes the row of its key."""
    if "deleted" in frame.columns:
        return F.coalesce(F.col("deleted"), F.lit(False))
    nothing = F.lit(True)
    for name in frame.columns:
        if name not in keys and name not in _ABOUT:
            nothing = nothing & F.col(f"`{name}`").isNull()
    return nothing
