"""Streams as tables and back: a table is the result of a stream of changes, and its changes are a stream.

users = as_table(debezium(read_batch(...), User, key=["id"]), "id")      # the rows of a table, as of now
changed = changes(pipe.read("users"), "id")                              # each change, with the row before it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import ABOUT_A_RECORD, require_columns
from penstock.spark.values.forms.python_types import form_of_type

_ABOUT: Final = frozenset((*ABOUT_A_RECORD, *(f"record_{name}" for name in ABOUT_A_RECORD)))
CREATED, UPDATED, DELETED = "c", "u", "d"
"""Debezium's names for changes."""


def as_table(frame: DataFrame, key: str | Sequence[str], *, by: str = "pointer") -> DataFrame:
    """The table after all changes of a batch frame: the last row of each key, without deleted rows.

    The last row has the greatest `by`; the default is the pointer, as all records of a key are in one partition. A row
    is deleted if its column `deleted` is true, as in the result of `debezium`; in a frame without that column, if all
    columns but the key are null, as in a record without a value.
    """
    if frame.isStreaming:
        raise ConfigError(
            "a stream has no last row: read the topic with read_batch or Pipeline.table, or use `changes`"
        )
    keys = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, [*keys, by])
    others = [name for name in frame.columns if name not in keys]
    last = frame.groupBy(*keys).agg(F.max_by(F.struct(*others), F.col(by)).alias("last")).select(*keys, "last.*")
    there = last.where(~_deleted(last, keys))
    return there.drop("deleted").select(*(name for name in frame.columns if name != "deleted"))


def changes(frame: DataFrame, key: str, *, fields: Sequence[str] | None = None) -> DataFrame:
    """The changes that the records of a stream make to their table: columns key, `op`, `before` and `after`.

    `op` is "c", "u" or "d"; `before` and `after` are structs of the `fields`, null if there is no row. The default for
    `fields` is all columns but the key and those about the record. A record that changes nothing, or deletes a missing
    row, is omitted. The last row of each key is kept as state. Written to a compacted topic with this key and `after`
    as the value, the changes are the table again.
    """
    chosen = [name for name in frame.columns if name != key and name not in _ABOUT] if fields is None else list(fields)
    chosen = [name for name in chosen if name != "deleted"] if fields is None else chosen
    require_columns(frame.columns, [key, *chosen])
    schema = without_watermarks(frame.schema)
    row = StructType([schema[name] for name in chosen])
    flagged = frame.withColumn("_deleted", _deleted(frame, [key])).withColumn("_row", F.struct(*chosen))
    place = F.col("pointer") if "pointer" in frame.columns else F.lit(None).cast("long")
    slim = flagged.select(F.col(key), "_deleted", "_row", place.alias("_place"))
    given_out = StructType(
        [schema[key], StructField("op", StringType()), StructField("before", row), StructField("after", row)]
    )
    return stateful(slim, key, Changing(key), given_out, state=row)


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

    Each change becomes the row after it; a deletion becomes the row before it, as far as the event contains it. `key`
    names columns that are filled from the record's key if the event lacks them. The columns are the `fields`, `op`,
    `deleted`, `changed_at` (when the database was changed) and those about the record. Tombstones, which follow
    deletions for compaction, are omitted. A record that is not a change event has a null `op`: write
    `where("op is null")` somewhere for inspection.
    """
    row = fields if isinstance(fields, StructType) else form_of_type(fields)[0].column
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
        F.coalesce(part("op") == DELETED, F.lit(False)).alias("deleted"),
        F.timestamp_millis(changed_ms).alias("changed_at"),
        *(F.col(name).alias(f"record_{name}" if name in row.names else name) for name in about),
    )


def _change(before: Any, after: Any) -> str | None:
    if before == after:
        return None
    if before is None:
        return CREATED
    return DELETED if after is None else UPDATED


def _deleted(frame: DataFrame, keys: Sequence[str]) -> Column:
    if "deleted" in frame.columns:
        return F.coalesce(F.col("deleted"), F.lit(False))
    nothing = F.lit(True)
    for name in frame.columns:
        if name not in keys and name not in _ABOUT:
            nothing = nothing & F.col(f"`{name}`").isNull()
    return nothing
