"""What a sink has read of its partitions and not committed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import SchemaMismatchError
from penstock.lakes.commits import Move, PointerSpans
from penstock.lakes.dead_rows import DeadRow
from penstock.lakes.fitting import converted, fit
from penstock.lakes.table import LakeTable
from penstock.lakes.writing import Delete
from penstock.model import Lease, Pointer, Record


@dataclass(slots=True)
class OwnedPartition:
    """A partition of this member."""

    application: str
    """The name of its position in the table."""
    lease: Lease | None
    committed: Pointer | None
    """The position in the table; None if it has none."""
    begun: Pointer
    """Where reading continues after `committed`, or began."""
    read: Pointer
    """What lies before this was read."""
    end: Pointer | None = None
    """Where a run with an `end` stops."""

    @property
    def is_moved(self) -> bool:
        return self.read != self.committed and (self.committed is not None or self.read != self.begun)


@dataclass(slots=True)
class Pending:
    """Rows in the order in which they were read."""

    rows: list[tuple[str, Record, Mapping[str, Any] | Delete]] = field(default_factory=list)
    dead: list[DeadRow] = field(default_factory=list)
    records: int = 0
    """How many records they come from, those without a row included."""
    size_bytes: int = 0
    since_s: float | None = None
    """When the first record that is not committed was read."""

    def clear(self) -> None:
        self.rows, self.dead, self.records, self.size_bytes, self.since_s = [], [], 0, 0, None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The contents of the next commit."""

    rows: pa.Table
    deleted: pa.Table | None
    dead: list[DeadRow]
    fitting: list[tuple[str, Record, Mapping[str, Any] | Delete]]
    """The pending rows without those that are dead."""


def prepared(pending: Pending, table: LakeTable, known: pa.Schema | None) -> Prepared:
    """Fit the pending rows into the table. What does not fit is dead; of the rows of a key, the last one counts."""
    dead = list(pending.dead)
    basis = known if known is not None else table.schema
    rows = [(index, row) for index, (_, _, row) in enumerate(pending.rows) if not isinstance(row, Delete)]
    fitted = fit([row for _, row in rows], basis, key=table.key, evolve=table.evolve)
    errors = {rows[i][0]: text for i, text in fitted.misfits.items()}
    found = fitted.table
    deleted: pa.Table | None = None
    if table.key and all(name in found.column_names for name in table.key):
        fitting = [index for i, (index, _) in enumerate(rows) if i not in fitted.misfits]
        columns = [found.column(name).to_pylist() for name in table.key]
        last: dict[tuple[Any, ...], int] = {}
        """By key: the index of the last row that sets or deletes it."""
        by_index = dict(zip(fitting, zip(*columns, strict=True), strict=True))
        for index, (_, _, row) in enumerate(pending.rows):
            if isinstance(row, Delete):
                try:
                    last[_key_of(row, table, found.schema)] = index
                except (ValueError, TypeError, OverflowError) as error:
                    errors[index] = f"a delete with key {dict(row.key)}: {error}"
            elif index in by_index:
                last[by_index[index]] = index
        position = {index: i for i, index in enumerate(fitting)}
        found = found.take(pa.array(sorted(position[i] for i in last.values() if i in position), pa.int64()))
        gone = [key for key, index in last.items() if index not in position]
        deleted = pa.Table.from_arrays(
            [pa.array([key[i] for key in gone], found.schema.field(name).type) for i, name in enumerate(table.key)],
            names=list(table.key),
        )
    elif table.key:
        found = found.slice(0, 0)  # a table that does not exist has nothing to delete
    dead += [DeadRow(pending.rows[i][0], pending.rows[i][1], text) for i, text in sorted(errors.items())]
    left = [row for i, row in enumerate(pending.rows) if i not in errors]
    return Prepared(found, deleted, dead, left)


def _key_of(row: Delete, table: LakeTable, schema: pa.Schema) -> tuple[Any, ...]:
    """The key of a delete, in the types that the table has for it."""
    missing = [name for name in table.key if row.key.get(name) is None]
    if missing:
        raise ValueError(f"it has no {missing[0]!r}")
    return tuple(
        pa.array([converted(row.key[name], schema.field(name).type)], schema.field(name).type)[0].as_py()
        for name in table.key
    )


def moves_of(held: Iterable[OwnedPartition]) -> list[Move]:
    """How far the positions of these partitions move."""
    return [Move(each.application, each.committed, each.read) for each in held]


def spans_of(held: Mapping[int, OwnedPartition], topic: str) -> PointerSpans:
    """The offsets of the next commit."""
    return {(topic, number): (each.begun, each.read) for number, each in held.items() if each.read > each.begun}


def check_dead(dead: Sequence[DeadRow], before: int, most: int | None, table: LakeTable) -> None:
    """Raise SchemaMismatchError if too many rows do not fit; None: never."""
    if most is None or before + len(dead) <= most:
        return
    first = dead[0]
    raise SchemaMismatchError(
        f"{before + len(dead)} rows do not fit into {table.label}, and max_dead_rows is {most}. The first of the last "
        f"{len(dead)} is {first.record.place}: {first.error}. Nothing of them was committed: change the table or the "
        "rows, or raise max_dead_rows to send them to the table of dead rows"
    )
