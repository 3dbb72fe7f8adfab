"""What joins with state take from a stream of changes to a table: keys, the order of changes, and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.patterns.ordering import pointer_of
from penstock.spark.tables import deletes, without_truncates
from penstock.spark.values.columns import ABOUT_A_RECORD, require_columns

PLACE: Final = "_place"
ROW: Final = "_row"
"""The row after a change; null if the change deletes it."""

_ABOUT: Final = frozenset((*ABOUT_A_RECORD, *(f"record_{name}" for name in ABOUT_A_RECORD)))
_ABOUT_CHANGES: Final = frozenset({"op", "deleted", "changed_at"})
"""What `debezium` adds to a row."""
_WHOLE_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)


def key_names(count: int) -> list[str]:
    return [f"_key_{number}" for number in range(count)]


def pairs_of(on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The columns that must be equal: those of the left side, each with that of the right side."""
    return dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}


def require_changes(table: DataFrame, what: str) -> None:
    """Raise ConfigError unless the frame is a stream."""
    if not table.isStreaming:
        raise ConfigError(
            f"{what} is no stream: give its changes, Pipeline.read(topic), or debezium of it; Pipeline.table is for"
            " `enrich`"
        )


def row_columns(table: DataFrame, keys: Sequence[str], columns: Sequence[str] | None, what: str) -> list[str]:
    """The columns of the table's rows beside their key: `columns`, or all that are not about a record or a change."""
    require_columns(table.columns, [*keys, *(columns or ())], what=what)
    about = _ABOUT | _ABOUT_CHANGES if "deleted" in table.columns else _ABOUT
    found = [
        name
        for name in (table.columns if columns is None else columns)
        if name not in keys and (columns is not None or name not in about)
    ]
    if not found:
        raise SchemaMismatchError(
            f"{what} has no columns beside its key and those about its records, so a deletion would look like a row: "
            "keep at least one column of its value"
        )
    return found


def row_type(table: DataFrame, columns: Sequence[str]) -> StructType:
    """The type of `ROW` for these columns."""
    schema = without_watermarks(table.schema)
    return StructType([StructField(name, schema[name].dataType) for name in columns])


def changed_rows(table: DataFrame, keys: Mapping[str, DataType], columns: Sequence[str], *also: Column) -> DataFrame:
    """The changes: columns `key_names`, cast to these types, `PLACE`, `ROW`, and what else is wanted of them.

    Changes without a key are omitted, and so are records that are no change events. The query fails at a deletion
    without a key, and at a truncate.
    """
    counts = F.lit(True)
    for name in keys:
        counts = counts & F.col(f"`{name}`").isNotNull()
    unknown = F.raise_error(
        f"a record deletes a row of a table, but its key, {', '.join(keys)}, is null: fill it from the record's key, "
        "coalesce(id, cast(cast(key as string) as bigint)), or by debezium(..., key=[...])"
    )
    counts = F.when(~counts & deletes(table, list(keys)), unknown.cast("boolean")).otherwise(counts)
    if {"op", "deleted"} <= set(table.columns):
        counts = counts & F.col("op").isNotNull()
    pointer = pointer_of(table)
    frame = table.where(without_truncates(table, counts))
    row = F.struct(*(F.col(f"`{name}`") for name in columns)).cast(row_type(table, columns))
    return frame.select(
        *(F.col(f"`{name}`").cast(kind).alias(alias) for (name, kind), alias in _aliased(keys)),
        (F.lit(None).cast("long") if pointer is None else F.col(f"`{pointer}`")).alias(PLACE),
        F.when(~deletes(table, list(keys)), row).alias(ROW),
        *also,
    )


def key_types(
    left: DataFrame, right: DataFrame, pairs: Mapping[str, str], sides: tuple[str, str]
) -> dict[str, DataType]:
    """The types in which the columns of a key are compared, by their names on the left side."""
    require_columns(left.columns, list(pairs), " to join on", what=sides[0], at_least_one=True)
    require_columns(right.columns, list(pairs.values()), " to join on", what=sides[1])
    found: dict[str, DataType] = {}
    for ours, theirs in pairs.items():
        mine, other = left.schema[ours].dataType, right.schema[theirs].dataType
        if mine != other and not (isinstance(mine, _WHOLE_NUMBERS) and isinstance(other, _WHOLE_NUMBERS)):
            raise SchemaMismatchError(
                f"{ours!r} of {sides[0]} is {mine.simpleString()}, and {theirs!r} of {sides[1]} is "
                f"{other.simpleString()}: cast one of them, such as F.col({theirs!r}).cast({mine.simpleString()!r})"
            )
        found[ours] = mine if mine == other else LongType()
    return found


def require_distinct(taken: Sequence[str], added: Sequence[str]) -> None:
    """Raise SchemaMismatchError if a column of the right side has the name of one of the left side."""
    twice = sorted(set(taken) & set(added))
    if twice:
        raise SchemaMismatchError(f"both sides have {', '.join(twice)}: choose others with columns=, or give a prefix=")


def nullable(schema: StructType) -> list[StructField]:
    return [StructField(field.name, field.dataType) for field in without_watermarks(schema)]


def _aliased(keys: Mapping[str, DataType]) -> list[tuple[tuple[str, DataType], str]]:
    return list(zip(keys.items(), key_names(len(keys)), strict=True))
