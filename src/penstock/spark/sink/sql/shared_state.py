"""`SqlState`: state by key in a table that several queries and other programs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from penstock.databases.statements import ExistingTable, names_in
from penstock.errors import ConfigError, DeliveryError, SchemaMismatchError
from penstock.spark.sink.sql.columns import Kind, SqlColumn, columns_of, stored_value
from penstock.spark.sink.sql.database import SqlDatabase, SqlTransaction, require_keys
from penstock.spark.sink.sql.delivery import SqlDelivery, check_fits
from penstock.spark.sink.sql.table import database_at, database_url
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity
from penstock.spark.state.shapes import Shape
from penstock.spark.values.columns import arrow_type_of, require_columns

UpdateFunction = Callable[[Any, Sequence[Row]], Any]


@dataclass(frozen=True, slots=True)
class SqlState:
    """State by key in a table of PostgreSQL or SQLite, which several queries and other programs share.

    For each key in a batch, `update(state, rows)` gets the state that is in the table, or None, and the rows of the
    key, in the order of their `pointer` if they have one. It returns the new state, or None to delete the row:

        @dataclasses.dataclass
        class Balance:
            account: str
            cents: int

        def add(balance, bookings):
            cents = sum(booking.cents for booking in bookings)
            return Balance(bookings[0].account, cents if balance is None else balance.cents + cents)

        pipe.write(bookings, SqlState("postgresql://...", "balances", add, Balance, key="account"), name="balances")

    `type` describes the rows of the table: a dataclass, a msgspec type, a NamedTuple or a StructType, with the columns
    of the `key`, which the frame has, too. A missing table is created unless `create` is False; an existing one must
    fit as for `SqlTable`.

    Exactly-once: rows are locked in the order of their keys, updated, and written together with the number of the batch
    in one transaction. So of several queries that update a table, none overwrites what another has written, whenever
    one of them is killed. Other programs must lock rows that they change, by SELECT ... FOR UPDATE or by UPDATE.

    `update` runs in the driver, with the rows of the batch in its memory. It must only compute: it is called again if
    the transaction is repeated.
    """

    url: str = field(repr=False)
    table: str
    update: UpdateFunction
    type: Any
    key: Sequence[str] | str = field(kw_only=True)
    create: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        names_in(self.table)
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        object.__setattr__(self, "url", database_url(self.url, self.label))
        if not callable(self.update):
            raise ConfigError(f"{self.label}: update={self.update!r} is no function: it gets the state and new rows")
        shape = self._shape()
        require_columns(shape.schema.names, self.key, " for the key", what="the state", at_least_one=True)
        for column in columns_of(shape.schema, self.label):
            if column.kind is Kind.JSON:
                raise ConfigError(
                    f"{self.label}: {column.name!r} is a list, a map or a record, which the state cannot have: make it "
                    "columns of their own, or a string"
                )

    @property
    def label(self) -> str:
        return f"state table {self.table}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """An existing table is checked, too."""
        if mode == "complete":
            raise ConfigError(
                f"{self.label}: complete mode sends all rows with every batch, and state is updated with new ones: use "
                "append or update, or SqlTable"
            )
        given = {column.name: column.kind for column in columns_of(schema, self.label)}
        require_columns(schema.names, self.key, " for the key", what=f"the frame for {self.label}")
        columns = columns_of(self._shape().schema, self.label)
        for column in columns:
            if column.name in self.key and given[column.name] is not column.kind:
                raise SchemaMismatchError(
                    f"{self.label}: key column {column.name!r} of the frame is {given[column.name].value}, and in the "
                    f"state {column.kind.value}: cast it"
                )
        database = database_at(self.url)
        try:
            with database.transaction() as transaction:
                existing = transaction.describe(names_in(self.table))
            if existing is not None:
                check_fits(database, existing, columns, self.key, self.label)
                _check_optional(database, existing, columns, self.key, self.label)
            elif not self.create:
                raise SchemaMismatchError(f"there is no {self.label} in {database.where}: create it")
        finally:
            database.close()

    def open(self, identity: QueryIdentity) -> Delivery:
        database = database_at(self.url)
        try:
            return SqlStateDelivery(
                database,
                identity,
                self.label,
                names_in(self.table),
                tuple(self.key),
                self._shape(),
                self.update,
                create=self.create,
            )
        except BaseException:
            database.close()
            raise

    def for_version(self, version: str) -> SqlState:
        """The table for this version of a pipeline."""
        return replace(self, table=f"{self.table}_{version.replace('-', '_')}")

    def _shape(self) -> Shape:
        return Shape(self.type, self.label)


class SqlStateDelivery(SqlDelivery):
    """Updates the rows of a table by each batch, in one transaction with its mark."""

    def __init__(
        self,
        database: SqlDatabase,
        identity: QueryIdentity,
        label: str,
        table: Sequence[str],
        key: Sequence[str],
        shape: Shape,
        update: UpdateFunction,
        *,
        create: bool,
    ) -> None:
        super().__init__(database, identity, label, table, key, create=create, marked=True)
        self._shape = shape
        self._update = update
        self._kept = columns_of(shape.schema, label)
        self._kept_key = [column for name in key for column in self._kept if column.name == name]

    def _provide(self, transaction: SqlTransaction, columns: Sequence[SqlColumn]) -> frozenset[str]:
        super()._provide(transaction, self._kept)
        existing = transaction.describe(self._table)
        assert existing is not None, "it was created or found"
        _check_optional(self._database, existing, self._kept, self._key, self._label)
        return frozenset(self._key)

    def _store(self, transaction: SqlTransaction, batches: Iterable[pa.RecordBatch]) -> None:
        by_key = self._by_key(batches)
        keys = self._batch(self._kept_key, list(by_key))
        stored = transaction.lock_rows(self._table, self._kept, self._kept_key, keys)
        changed: list[Row] = []
        deleted: list[tuple[Any, ...]] = []
        for (key, rows), found in zip(by_key.items(), stored, strict=True):
            before = None if found is None else tuple(map(stored_value, found, (each.kind for each in self._kept)))
            after = self._updated(key, before, rows)
            if after is None:
                deleted.append(key)
            elif after != before:
                changed.append(after)
        if deleted:
            transaction.delete_rows(self._table, self._kept_key, self._batch(self._kept_key, deleted))
        if changed:
            transaction.write(self._table, self._kept, self._key, [self._batch(self._kept, changed)])

    def _by_key(self, batches: Iterable[pa.RecordBatch]) -> dict[tuple[Any, ...], list[Row]]:
        names = [column.name for column in self._columns]
        row_of = Row(*names)
        places = [names.index(name) for name in self._key]
        found: dict[tuple[Any, ...], list[Row]] = {}
        for batch in batches:
            require_keys(batch, self._columns, self._key, nan_is_null=self._database.nan_is_null)
            values = [_values(batch.column(index), column.kind) for index, column in enumerate(self._columns)]
            for cells in zip(*values, strict=True):
                found.setdefault(tuple(cells[place] for place in places), []).append(row_of(*cells))
        pointer = next((name for name in ("record_pointer", "pointer") if name in names), None)
        if pointer is not None:
            for rows in found.values():
                rows.sort(key=lambda row: (row[pointer] is not None, row[pointer] or 0))
        return found

    def _updated(self, key: tuple[Any, ...], before: tuple[Any, ...] | None, rows: Sequence[Row]) -> Row | None:
        name = getattr(self._update, "__qualname__", repr(self._update))
        try:
            made = self._update(None if before is None else self._shape.decode(before), rows)
            after = None if made is None else self._shape.encode(made)
        except Exception as error:
            raise DeliveryError(
                f"{self._label}: {name} failed for key {_shown(key)}, so the batch was not written: "
                f"{type(error).__name__}: {error}"
            ) from error
        if after is not None and tuple(after[column.name] for column in self._kept_key) != key:
            raise DeliveryError(
                f"{self._label}: {name} returned {after!r} for key {_shown(key)}: the state must have the same key"
            )
        return after

    def _batch(self, columns: Sequence[SqlColumn], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        kinds = [arrow_type_of(self._shape.schema[column.name].dataType) for column in columns]
        try:
            arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DeliveryError(f"{self._label}: a state does not fit the columns of its type: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _check_optional(
    database: SqlDatabase, existing: ExistingTable, columns: Sequence[SqlColumn], key: Sequence[str], label: str
) -> None:
    """Raise SchemaMismatchError if a row cannot be inserted, and thereby locked, before the rest of it is known."""
    for column in columns:
        if database.locks_by_inserting and column.name not in key and existing.columns[column.name].is_required:
            raise SchemaMismatchError(
                f"{label}: column {column.name!r} is NOT NULL and has no default, but a new row is first inserted with "
                "its key alone, which locks it: give the column a default"
            )


def _values(column: pa.Array, kind: Kind) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if kind is Kind.JSON:
        return [None if value is None else msgspec.json.decode(value) for value in values]
    return values


def _shown(key: tuple[Any, ...]) -> str:
    return repr(key[0] if len(key) == 1 else key)
