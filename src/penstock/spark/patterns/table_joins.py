"""Joins of two tables: each is known by its changes, and the result is the changes of a third."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType

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
from penstock.spark.state.context import KeyContext, StateValue
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import require_columns

HowTables = Literal["inner", "left", "outer"]

LEFT, RIGHT = "left", "right"
"""The rows of a key that the join keeps as state. In what it is given: the changes of each side, or null."""
REFERRING: Final = "referring"
"""The left rows that refer to a row of the right table, by their keys."""
DELETED: Final = "deleted"
KEY: Final = "_key"
MOVED: Final = "_moved"
"""Whether a left row referred to another right row before, or does so now."""


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
    or, if `deleted`, deletes it. It can be joined again; `penstock.spark.tables.as_changelog` makes it
    records for a compacted topic, and `SqlTable(..., deleted="deleted")` a table of a database.

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
    own = own if is_reference else list(pairs)
    ours = row_columns(left, own, None, "the left table")
    lost = ", ".join(name for name in pairs if name not in (*own, *ours))
    if lost:
        raise SchemaMismatchError(f"{lost} is about a record, which is not kept: copy it to a column of another name")
    theirs = row_columns(right, list(pairs.values()), columns, "the right table")
    require_distinct([*own, *ours, DELETED], [f"{prefix}{name}" for name in theirs])
    left_row, right_row = row_type(left, ours), row_type(right, theirs)
    key_row = StructType([StructField(name, kinds.get(name, left.schema[name].dataType)) for name in own])
    output = StructType(
        [
            *key_row.fields,
            *nullable(left_row),
            *(StructField(f"{prefix}{it.name}", it.dataType) for it in nullable(right_row)),
            StructField(DELETED, BooleanType()),
        ]
    )
    changed = changed_rows(left, {each.name: each.dataType for each in key_row}, ours)
    names = key_names(len(pairs))
    rights = changed_rows(right, {name: kinds[ours] for ours, name in pairs.items()}, theirs)
    rights = rights.select(*names, F.struct(PLACE, ROW).alias(RIGHT))
    rows_of = JoinedRows(output.names, len(left_row), len(right_row), how)
    if not is_reference:
        lefts = changed.select(*names, F.struct(PLACE, ROW).alias(LEFT))
        kept = {LEFT: left_row, RIGHT: right_row}
        return stateful(_union(lefts, rights), names, EqualKeys(rows_of), output, values=kept)
    placed = StructType(
        [
            *(StructField(alias, kind) for alias, kind in zip(names, kinds.values(), strict=True)),
            StructField(KEY, key_row),
            StructField(LEFT, left_row),
            StructField(MOVED, BooleanType()),
        ]
    )
    placing = Placing(own, list(pairs))
    lefts = stateful(changed, key_names(len(own)), placing, placed, values={LEFT: left_row})
    return stateful(
        _union(lefts, rights),
        names,
        References(rows_of),
        output,
        values={RIGHT: right_row},
        maps={REFERRING: (key_row, left_row)},
    )


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    """The rows of both, with null for the columns of the other."""
    return first.unionByName(second, allowMissingColumns=True)


class JoinedRows:
    """What a join makes of a left and a right row."""

    def __init__(self, output: Sequence[str], left: int, right: int, how: HowTables) -> None:
        self._row_of = Row(*output)
        self._no_left: tuple[None, ...] = (None,) * left
        self._no_right: tuple[None, ...] = (None,) * right
        self._how = how

    def joined(self, left: Row | None, right: Row | None) -> tuple[Any, ...] | None:
        """The columns beside the key; None if there is no such row."""
        needed = {"inner": left is not None and right is not None, "left": left is not None, "outer": True}
        if not needed[self._how] or (left is None and right is None):
            return None
        return (*(left or self._no_left), *(right or self._no_right))

    def change(self, key: Iterable[Any], joined: tuple[Any, ...] | None) -> Row:
        return self._row_of(*key, *(joined or (*self._no_left, *self._no_right)), joined is None)


class EqualKeys:
    """The stateful function for the rows of one key."""

    def __init__(self, rows_of: JoinedRows) -> None:
        self._rows_of = rows_of

    def __call__(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        given = list(rows)
        left_before, left = _replace(ctx.value(LEFT), (row[LEFT] for row in given))
        right_before, right = _replace(ctx.value(RIGHT), (row[RIGHT] for row in given))
        was, now = self._rows_of.joined(left_before, right_before), self._rows_of.joined(left, right)
        if was != now:
            yield self._rows_of.change(key, now)


class Placing:
    """The stateful function of one left row: sends it to the right row that it refers to, and away from the last."""

    def __init__(self, key: Sequence[str], reference: Sequence[str]) -> None:
        self._key = Row(*key)
        self._places = [(name in key, key.index(name) if name in key else name) for name in reference]

    def __call__(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[Any, ...]]:
        before, after = _replace(ctx.value(LEFT), rows)
        if before == after:
            return
        was, now = self._reference(key, before), self._reference(key, after)
        moved = was is not None and now is not None and was != now
        named = self._key(*key)
        if was is not None and (now is None or moved):
            yield (*was, named, None, moved)
        if now is not None:
            yield (*now, named, after, moved)

    def _reference(self, key: Any, row: Row | None) -> tuple[Any, ...] | None:
        return None if row is None else tuple(key[at] if is_key else row[at] for is_key, at in self._places)


class References:
    """The stateful function of one right row, and of the left rows that refer to it.

    A left row that moves from one right row to another is a change of the latter's only: both would otherwise change
    the same row of the result in one batch, in no order.
    """

    def __init__(self, rows_of: JoinedRows) -> None:
        self._rows_of = rows_of

    def __call__(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        joined, referring = self._rows_of.joined, ctx.map(REFERRING)
        given = list(rows)
        right_before, right = _replace(ctx.value(RIGHT), (row[RIGHT] for row in given))
        changed = {row[KEY]: row for row in given if row[KEY] is not None}
        if right != right_before:
            for own, left in list(referring.items()):
                was, now = joined(left, right_before), joined(left, right)
                if own not in changed and was != now:
                    yield self._rows_of.change(own, now)
        for own, row in changed.items():
            was, now = joined(referring.get(own), right_before), joined(row[LEFT], right)
            if row[LEFT] is None:
                referring.delete(own)
            else:
                referring.put(own, row[LEFT])
            has_gone_elsewhere = row[LEFT] is None and row[MOVED]
            if not has_gone_elsewhere and (was != now or row[MOVED]):
                yield self._rows_of.change(own, now)


def _replace(state: StateValue, changes: Iterable[Row | None]) -> tuple[Row | None, Row | None]:
    """Apply the last of these changes to a row that is kept. Returns the row before and after them."""
    before = state.get()
    made = [each for each in changes if each is not None]
    if not made:
        return before, before
    after = max(made, key=lambda each: (each[PLACE] is not None, each[PLACE] or 0))[ROW]
    if after is not None:
        state.put(after)
    elif before is not None:
        state.delete()
    return before, after
