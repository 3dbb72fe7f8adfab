"""Joins of two tables: each is known by its changes, and the result is the changes of a third."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.patterns.changelogs import (
    PLACE,
    ROW,
    changed_rows,
    key_names,
    key_types,
    nullable,
    pairs_of,
    require_changes,
    require_distinct,
    row_columns,
    row_type,
)
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import require_columns

HowTables = Literal["inner", "left", "outer"]

DELETED: Final = "deleted"
LEFT, RIGHT = "left", "right"
"""The rows of a key that the join keeps as state."""
REFERRING: Final = "referring"
"""The left rows that refer to a row of the right table, by their keys."""
_SIDE: Final = "_side"
_KEY: Final = "_key"
_MOVED: Final = "_moved"
_OLD, _NEW = "_old", "_new"


def join_tables(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str] | Mapping[str, str],
    how: HowTables = "inner",
    *,
    key: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
) -> DataFrame:
    """The changes of the join of two tables, which are given by their changes.

    Each side is `Pipeline.read` of a topic, or `debezium` of one. A row with the key `on` replaces the earlier one, and
    one that is `deleted`, or has no value, deletes it. Changes need their `pointer`: it orders those of one batch.

    The result has the columns of the key, those of the left side, those of the right side with `prefix`, and `deleted`.
    Each batch has at most one row for each key, and only if the joined row has changed: it replaces the previous one,
    or, if `deleted`, deletes it. Write it with `penstock.spark.tables.as_changelog` to a compacted topic, or to a
    `SqlTable` with `deleted="deleted"`; or join it again.

    "inner" has rows for keys that both tables have, "left" for all of the left table, "outer" for all of both.

    `key` is the key of the left table if `on` is a reference to the right one: `on={"customer": "id"}, key="order"`
    joins orders with their customers. A changed customer changes all of its orders. An outer join is not possible then.

    State has both tables, with all columns that are not about records; `columns` selects those of the right one.
    """
    if how not in get_args(HowTables):
        raise ConfigError(f"how={how!r} is not allowed: use {', '.join(get_args(HowTables))}")
    for table, side in ((left, "the left table"), (right, "the right table")):
        require_changes(table, side)
    pairs = pairs_of(on)
    kinds = key_types(left, right, pairs, ("the left table", "the right table"))
    own = list(pairs) if key is None else [key] if isinstance(key, str) else list(key)
    require_columns(left.columns, own, " for the key", what="the left table", at_least_one=True)
    is_reference = set(own) != set(pairs)
    if is_reference and how == "outer":
        raise ConfigError(
            "an outer join needs equal keys: with key=, the result has the keys of the left table, which rows of the "
            "right table without a match do not have"
        )
    ours = row_columns(left, own, None, "the left table")
    if is_reference and not set(pairs) <= {*own, *ours}:
        raise SchemaMismatchError(f"{', '.join(pairs)} is about a record: give it another name to join on it")
    theirs = row_columns(right, list(pairs.values()), columns, "the right table")
    require_distinct([*own, *ours, DELETED], [f"{prefix}{name}" for name in theirs])
    left_row, right_row = row_type(left, ours), row_type(right, theirs)
    key_row = StructType(
        [StructField(name, kinds[name] if name in kinds else left.schema[name].dataType) for name in own]
    )
    output = StructType(
        [
            *nullable(key_row),
            *nullable(left_row),
            *(StructField(f"{prefix}{it.name}", it.dataType) for it in nullable(right_row)),
            StructField(DELETED, BooleanType()),
        ]
    )
    right_changes = changed_rows(right, {name: kinds[ours] for ours, name in pairs.items()}, theirs)
    left_changes = changed_rows(left, {each.name: each.dataType for each in key_row}, ours)
    result = JoinedRow(output.names, len(ours), how)
    if not is_reference:
        names = key_names(len(own))
        order = [names[own.index(name)] for name in pairs]
        rights = right_changes.select(
            *(F.col(f"_key_{list(pairs).index(name)}").alias(names[place]) for place, name in enumerate(own)),
            PLACE,
            ROW,
        )
        assert len(order) == len(names)
        return stateful(
            _both(left_changes, rights, names), names, EqualKeys(result), output, values={LEFT: left_row, RIGHT: right_row}
        )
    return _referring(left_changes, right_changes, key_row, left_row, right_row, kinds, result, output)


def _both(left: DataFrame, right: DataFrame, names: Sequence[str]) -> DataFrame:
    """The changes of both sides: `LEFT` and `RIGHT` are the rows of the one that `_SIDE` names."""
    return left.select(
        *names,
        F.lit(LEFT).alias(_SIDE),
        F.col(PLACE).cast("string").alias(PLACE) if _places_differ(left, right) else F.col(PLACE),
        F.col(ROW).alias(LEFT),
        F.lit(None).cast(right.schema[ROW].dataType).alias(RIGHT),
    ).union(
        right.select(
            *names,
            F.lit(RIGHT).alias(_SIDE),
            F.col(PLACE).cast("string").alias(PLACE) if _places_differ(left, right) else F.col(PLACE),
            F.lit(None).cast(left.schema[ROW].dataType).alias(LEFT),
            F.col(ROW).alias(RIGHT),
        )
    )
