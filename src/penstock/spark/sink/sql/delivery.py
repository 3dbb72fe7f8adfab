"""`SqlDelivery`: writes the batches of one run of a query to a table."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from penstock.databases.statements import ExistingTable
from penstock.errors import (
    CheckpointMismatchError,
    FencedError,
    OutcomeUnknownError,
    SchemaMismatchError,
    StoreUnavailableError,
)
from penstock.spark.sink.publishing import check_order
from penstock.spark.sink.refused_rows import RefusedRow
from penstock.spark.sink.sql.columns import SqlColumn, columns_of, json_rows, plain
from penstock.spark.sink.sql.database import SqlDatabase, SqlMark, SqlTransaction, null_keys, require_keys
from penstock.spark.sink.staging import Encoding, Staged, StagingFolder, stage
from penstock.spark.sink.target import Delivered, QueryIdentity

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 4


class SqlDelivery:
    """Writes each batch in one transaction, for exactly-once together with its mark.

    The row of the mark is locked from before the first row is written until the commit: a newer run that takes over
    waits for it, and an older run finds that the mark belongs to another run.
    """

    def __init__(
        self,
        database: SqlDatabase,
        identity: QueryIdentity,
        label: str,
        table: Sequence[str],
        key: Sequence[str],
        *,
        create: bool,
        marked: bool,
        deleted: str | None = None,
    ) -> None:
        self._database = database
        self._identity = identity
        self._label = label
        self._table = table
        self._key = key
        self._create = create
        self._deleted = deleted
        self._run = uuid.uuid4().hex if marked else None
        self._last = SqlMark("", -1, 0)
        self._columns: tuple[SqlColumn, ...] = ()
        self._keys: frozenset[str] = frozenset()
        """The columns in which no row may have null: the key, and the table's primary key."""
        self._staging = StagingFolder(identity.staging)
        self._encoding = Encoding(plain)
        if self._run is not None:
            with database.transaction() as transaction:
                transaction.create_marks()
                self._last = transaction.take_over(identity.id, self._run)
                if self._last.batch < 0 and transaction.has_positions(identity.id.partition("/")[0]):
                    raise CheckpointMismatchError(
                        f"query {identity.query!r} has written to {label} in real-time mode, and batches would write "
                        "its last rows again: rename the query to start over, or keep trigger=RealTime()"
                    )
        self._staging.clear()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._run is not None:
            check_order(batch_id, self._last.batch, self._label)
            if batch_id == self._last.batch:
                return Delivered(self._last.rows, repeated=True)
        staged = stage(frame, self._staging, batch_id, encoding=self._encoding)
        try:
            self._identity.evaluated(batch_id)
            self._prepare_table(frame)
            refused = self._refuse(staged)
            self._write_with_retries(staged, refused)
        finally:
            staged.discard()
        self._last = SqlMark(self._run or "", batch_id, staged.rows - refused)
        return Delivered(self._last.rows, refused=refused)

    def close(self) -> None:
        self._database.close()

    def _prepare_table(self, frame: DataFrame) -> None:
        """Create or check the table when the columns of the rows have changed."""
        columns = columns_of(frame.schema, self._label)
        if columns != self._columns:
            with self._database.transaction() as transaction:
                primary_key = self._provide(transaction, columns)
            self._columns, self._keys = columns, primary_key.union(self._key)

    def _provide(self, transaction: SqlTransaction, columns: Sequence[SqlColumn]) -> frozenset[str]:
        """Create or check the table for rows of these columns. Returns its primary key."""
        kept = self._without_deleted(columns)
        return provide_table(self._database, transaction, self._table, kept, self._key, self._create, self._label)

    def _refuse(self, staged: Staged) -> int:
        """Put rows without a key into the dead letters, if the query has any. Returns their number."""
        refused = self._identity.refused
        if refused is None or not self._keys:
            return 0  # without dead letters, such rows fail the batch when it is written
        rows = (row for batch in staged.batches() for row in self._refused_of(batch))
        return refused.put(self._identity, self._label, staged.batch_id, rows)

    def _refused_of(self, batch: pa.RecordBatch) -> Iterator[RefusedRow]:
        nulls = self._null_keys(batch)
        if nulls:
            values = json_rows(batch.take(pa.array(list(nulls), pa.int64())), self._columns)
            yield from map(RefusedRow, values, map(_reason, nulls.values()))

    def _with_keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if nulls := self._null_keys(batch):
                batch = batch.filter(pa.array([row not in nulls for row in range(batch.num_rows)], pa.bool_()))
            yield batch

    def _null_keys(self, batch: pa.RecordBatch) -> dict[int, list[str]]:
        return null_keys(batch, self._columns, self._keys, nan_is_null=self._database.nan_is_null)

    def _write_with_retries(self, staged: Staged, refused: int) -> None:
        problem: StoreUnavailableError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, 0.1 * 4**attempt))
            try:
                with self._database.transaction() as transaction:
                    self._write(transaction, staged, refused)
                return
            except StoreUnavailableError as error:
                problem = error
                logger.info("batch %d could not be written to %s: %s", staged.batch_id, self._label, error)
                if isinstance(error, OutcomeUnknownError) and self._run is None:
                    raise
        assert problem is not None
        raise problem

    def _write(self, transaction: SqlTransaction, staged: Staged, refused: int) -> None:
        if self._run is not None:
            mark = transaction.mark(self._identity.id)
            if mark is None or mark.run != self._run:
                raise FencedError(
                    f"{self._label} was opened by a newer run of query {self._identity.query!r} of pipeline "
                    f"{self._identity.pipeline!r}, which delivers batch {staged.batch_id}: this run must stop"
                )
            if mark.batch == staged.batch_id:
                return  # the previous attempt lost its connection after the commit
        if self._identity.mode == "complete":
            transaction.clear(self._table)
        rows = staged.rows - refused
        if rows:
            batches = self._with_keys(staged.batches()) if refused else staged.batches()
            self._store(transaction, batches)
        if self._run is not None:
            transaction.set_mark(self._identity.id, SqlMark(self._run, staged.batch_id, rows))

    def _store(self, transaction: SqlTransaction, batches: Iterable[pa.RecordBatch]) -> None:
        if self._deleted is None:
            transaction.write(self._table, self._columns, self._key, batches)
            return
        sign = self._deleted
        is_deleted: dict[tuple[Any, ...], bool] = {}
        columns = self._without_deleted(self._columns)
        by_name = {column.name: column for column in columns}
        names = [column.name for column in self._columns]
        kinds: list[pa.DataType] = []

        def rows_that_stay() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                require_keys(batch, self._columns, self._key, nan_is_null=self._database.nan_is_null)
                keys = [batch.column(names.index(name)) for name in self._key]
                kinds[:] = [key.type for key in keys]
                deleted = pc.fill_null(batch.column(names.index(sign)), False)
                values = zip(*(key.to_pylist() for key in keys), strict=True)
                is_deleted.update(zip(values, deleted.to_pylist(), strict=True))
                yield batch.filter(pc.invert(deleted)).select([names.index(column.name) for column in columns])

        transaction.write(self._table, columns, self._key, rows_that_stay())
        gone = [key for key, last in is_deleted.items() if last]
        if gone:
            arrays = [pa.array(cells, kind) for cells, kind in zip(zip(*gone, strict=True), kinds, strict=True)]
            keys = pa.RecordBatch.from_arrays(arrays, names=list(self._key))
            transaction.delete_rows(self._table, [by_name[name] for name in self._key], keys)

    def _without_deleted(self, columns: Sequence[SqlColumn]) -> tuple[SqlColumn, ...]:
        return tuple(column for column in columns if column.name != self._deleted)


def provide_table(
    database: SqlDatabase,
    transaction: SqlTransaction,
    table: Sequence[str],
    columns: Sequence[SqlColumn],
    key: Sequence[str],
    create: bool,
    label: str,
) -> frozenset[str]:
    """Create the table, or check that the existing one fits. Returns its primary key."""
    existing = transaction.describe(table)
    if existing is None and create:
        transaction.create(table, columns, key)
        return frozenset(key)
    if existing is None:
        raise SchemaMismatchError(f"there is no {label} in {database.where}: create it, or set create=True")
    check_fits(database, existing, columns, key, label)
    return existing.primary_key


def check_fits(
    database: SqlDatabase, existing: ExistingTable, columns: Sequence[SqlColumn], key: Sequence[str], label: str
) -> None:
    """Raise SchemaMismatchError unless the table can store rows of these columns unchanged."""
    for column in columns:
        there = existing.columns.get(column.name)
        if there is None:
            raise SchemaMismatchError(
                f"{label} has no column {column.name!r}; it has {', '.join(existing.columns)}. Add it to the table, or "
                "drop it from the rows"
            )
        if not database.fits(column, there.declared):
            raise SchemaMismatchError(
                f"{label}: column {column.name!r} is {there.declared or 'without a type'}, which cannot store "
                f"{column.kind.value} unchanged: cast the rows, or change the column to {database.type_of(column)}"
            )
    given = {column.name for column in columns}
    for there in existing.columns.values():
        if there.is_required and there.name not in given:
            raise SchemaMismatchError(
                f"{label}: column {there.name!r} is NOT NULL and has no default, but the rows do not have it"
            )
    if key and frozenset(key) not in existing.unique:
        names = ", ".join(key)
        raise SchemaMismatchError(
            f"{label} has no unique index over ({names}), which replacing rows needs: create one with "
            "CREATE UNIQUE INDEX"
        )


def _reason(columns: Sequence[str]) -> str:
    names = ", ".join(f"`{name}`" for name in columns)
    return f"key column {names} is null" if len(columns) == 1 else f"key columns {names} are null"
