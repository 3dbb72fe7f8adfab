"""A table that was opened for one run of a query."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from penstock.errors import FencedError, OutcomeUnknownError, SchemaMismatchError, StoreUnavailableError
from penstock.spark.sink.publishing import check_order
from penstock.spark.sink.sql.columns import SqlColumn, columns_of, plain
from penstock.spark.sink.sql.database import ExistingTable, SqlDatabase, SqlMark, SqlTransaction
from penstock.spark.sink.staged import Staged, stage
from penstock.spark.sink.staging_folder import StagingFolder
from penstock.spark.targets import Delivered, QueryIdentity

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 4


class SqlDelivery:
    """Writes each batch in one transaction, together with its mark where the batch is to count once.

    The mark's row is locked from before the first row is written until the commit: a newer run that takes over waits
    for it, and an older one finds that the mark is no longer its own.
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
    ) -> None:
        self._database = database
        self._identity = identity
        self._label = label
        self._table = table
        self._key = key
        self._create = create
        self._run = uuid.uuid4().hex if marked else None
        self._last = SqlMark("", -1, 0)
        self._columns: tuple[SqlColumn, ...] | None = None
        self._staging = StagingFolder(identity.staging)
        if self._run is not None:
            with database.transaction() as transaction:
                transaction.create_marks()
                self._last = transaction.take_over(identity.id, self._run)
        self._staging.clear()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._run is not None:
            check_order(batch_id, self._last.batch, self._label)
            if batch_id == self._last.batch:
                return Delivered(self._last.rows, repeated=True)
        staged = stage(plain(frame), self._staging, batch_id)
        try:
            columns = self._ready(frame)
            self._write_with_patience(columns, staged)
        finally:
            staged.discard()
        self._last = SqlMark(self._run or "", batch_id, staged.rows)
        return Delivered(staged.rows)

    def close(self) -> None:
        self._database.close()

    def _ready(self, frame: DataFrame) -> tuple[SqlColumn, ...]:
        """The columns of the rows, for which the table is there."""
        columns = columns_of(frame.schema, self._label)
        if columns != self._columns:
            with self._database.transaction() as transaction:
                provide_table(self._database, transaction, self._table, columns, self._key, self._create, self._label)
            self._columns = columns
        return columns

    def _write_with_patience(self, columns: Sequence[SqlColumn], staged: Staged) -> None:
        problem: StoreUnavailableError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0, 0.1 * 4**attempt))
            try:
                with self._database.transaction() as transaction:
                    self._write(transaction, columns, staged)
                return
            except StoreUnavailableError as error:
                problem = error
                logger.info("batch %d could not be written to %s: %s", staged.batch_id, self._label, error)
                if isinstance(error, OutcomeUnknownError) and self._run is None:
                    raise
        assert problem is not None
        raise problem

    def _write(self, transaction: SqlTransaction, columns: Sequence[SqlColumn], staged: Staged) -> None:
        if self._run is not None:
            mark = transaction.mark(self._identity.id)
            if mark is None or mark.run != self._run:
                raise FencedError(
                    f"{self._label} was opened by a newer run of query {self._identity.query!r} of pipeline "
                    f"{self._identity.pipeline!r}: this one delivers no more, and batch {staged.batch_id} is for that "
                    "one to deliver"
                )
            if mark.batch == staged.batch_id:
                return  # the commit before this one was not answered, but it counts
        if self._identity.mode == "complete":
            transaction.clear(self._table)
        if staged.rows:
            transaction.write(self._table, columns, self._key, staged.batches())
        if self._run is not None:
            transaction.set_mark(self._identity.id, SqlMark(self._run, staged.batch_id, staged.rows))


def provide_table(
    database: SqlDatabase,
    transaction: SqlTransaction,
    table: Sequence[str],
    columns: Sequence[SqlColumn],
    key: Sequence[str],
    create: bool,
    label: str,
) -> None:
    """Have a table for these columns: create it, or see that the one that is there fits."""
    existing = transaction.describe(table)
    if existing is None and create:
        transaction.create(table, columns, key)
    elif existing is None:
        raise SchemaMismatchError(f"there is no {label} in {database.where}: create it, or say create=True")
    else:
        check_fits(database, existing, columns, key, label)


def check_fits(
    database: SqlDatabase, existing: ExistingTable, columns: Sequence[SqlColumn], key: Sequence[str], label: str
) -> None:
    """SchemaMismatchError unless rows of these columns can be written to the table as they are."""
    for column in columns:
        there = existing.columns.get(column.name)
        if there is None:
            raise SchemaMismatchError(
                f"{label} has no column {column.name!r}; it has {', '.join(existing.columns)}. Add it, or leave it away"
            )
        if not database.fits(column, there.declared):
            raise SchemaMismatchError(
                f"{label}: column {column.name!r} is {there.declared or 'without a type'} there, which does not keep "
                f"{column.kind.value} as it is: cast the rows, or make the column {database.type_of(column)}"
            )
    given = {column.name for column in columns}
    for there in existing.columns.values():
        if there.must_be_given and there.name not in given:
            raise SchemaMismatchError(
                f"{label}: column {there.name!r} takes no null and has no default, and the rows do not have it"
            )
    if key and frozenset(key) not in existing.unique:
        names = ", ".join(key)
        raise SchemaMismatchError(
            f"{label} has no unique index over ({names}), by which rows could replace others: create one with "
            "CREATE UNIQUE INDEX"
        )
