"""Delivery to lake tables: each commit of a Delta or Iceberg table names its query and batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructType

from penstock.errors import ConfigError, FencedError, SchemaMismatchError
from penstock.lakes.commits import Move, metadata_of
from penstock.lakes.formats import Rows
from penstock.lakes.table import LakeTable
from penstock.lakes.writing import in_utc, latest_rows
from penstock.spark.sink.publishing import check_order
from penstock.spark.sink.refused_rows import RefusedRow
from penstock.spark.sink.staging import Staged, StagingFolder, stage
from penstock.spark.sink.target import Delivered, OutputMode, QueryIdentity
from penstock.spark.values.columns import require_columns


@dataclass(frozen=True, slots=True)
class LakeTarget:
    """A lake table as a target: `Pipeline.write(frame, LakeTable(...))` makes one.

    Without a key, rows are appended. With one, a row replaces the row with the same key; of several in one batch, the
    last one counts, and update mode is possible. In complete mode, a batch replaces the whole table.
    """

    table: LakeTable

    @property
    def label(self) -> str:
        return self.table.label

    def check(self, schema: StructType, mode: OutputMode) -> None:
        table, what = self.table, f"the frame for {self.label}"
        if mode == "update" and not table.key:
            raise ConfigError(
                f"{self.label}: update mode sends changed rows again: set key='COLUMN', so that each replaces the "
                "previous one"
            )
        require_columns(schema.names, table.key, " for the key", what=what)
        require_columns(schema.names, table.partition_by, " to partition by", what=what)
        if table.deletes is not None:
            require_columns(schema.names, (table.deletes,), " for deletes", what=what)
            if not isinstance(schema[table.deletes].dataType, BooleanType):
                raise SchemaMismatchError(
                    f"{self.label}: column {table.deletes!r} must be boolean: it says what to delete"
                )
        table.open().check(_stored(schema, table))

    def open(self, identity: QueryIdentity) -> LakeDelivery:
        return LakeDelivery(self.table, identity)

    def for_version(self, version: str) -> LakeTarget:
        """The table for this version of a pipeline, beside this one."""
        end = f".{version}" if self.table.is_delta else f"_{version.replace('-', '_').replace('.', '_')}"
        return LakeTarget(replace(self.table, uri=f"{self.table.uri.rstrip('/')}{end}"))


class LakeDelivery:
    """A lake table opened for one run of a query.

    The position of the query in the table is the number of its last batch. It is read before the tasks run, and the
    commit is refused if it has changed since: if two drivers deliver a batch, one of them wins.
    """

    def __init__(self, table: LakeTable, identity: QueryIdentity) -> None:
        self._table = table
        self._identity = identity
        self._opened = table.open()
        self._application = hashlib.blake2b(identity.id.encode(), digest_size=16).hexdigest()
        self._staging = StagingFolder(identity.staging)
        self._staging.clear()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        last = self._opened.last_version(self._application)
        if last is not None:
            check_order(batch_id, last, self._table.label)
            if last == batch_id:
                return Delivered(0, repeated=True)
        staged = stage(frame, self._staging, batch_id)
        try:
            self._identity.evaluated(batch_id)
            refused = self._refuse(staged)
            if staged.rows or self._identity.mode == "complete":
                self._commit(frame.schema, staged, Move(self._application, last, batch_id))
        finally:
            staged.discard()
        return Delivered(staged.rows - refused, refused=refused)

    def close(self) -> None:
        """Do nothing: the table holds no resources."""

    def _commit(self, schema: StructType, staged: Staged, move: Move) -> None:
        identity, table = self._identity, self._table
        arrow = in_utc(to_arrow_schema(schema, timezone="UTC"))
        deleted: pa.Table | None = None

        def stream() -> Rows:
            return pa.RecordBatchReader.from_batches(arrow, (each.cast(arrow) for each in staged.batches()))

        rows = stream
        if table.key:
            found = pa.Table.from_batches(self._with_keys(staged, arrow), arrow)
            found, deleted = latest_rows(found, table.key, table.deletes, table.label)
            rows = lambda: found  # noqa: E731
        self._opened.evolve(_stored(schema, table))
        offsets = identity.offsets(move.version) if identity.offsets is not None else {}
        committed = self._opened.commit(
            rows,
            [move],
            metadata_of(f"{identity.pipeline}/{identity.query}", offsets),
            deleted=deleted,
            replaces_all=identity.mode == "complete",
        )
        if not committed:
            raise FencedError(
                f"another run of query {identity.query!r} has delivered batches to {table.label} since batch "
                f"{move.version} began: this run must stop"
            )

    def _refuse(self, staged: Staged) -> int:
        """Put rows without a key into the dead letters, if the query has any. Returns their number."""
        refused = self._identity.refused
        if refused is None or not self._table.key:
            return 0  # without dead letters, such rows fail the batch
        rows = (row for batch in staged.batches() for row in self._refused_of(batch))
        return refused.put(self._identity, self._table.label, staged.batch_id, rows)

    def _refused_of(self, batch: pa.RecordBatch) -> Iterator[RefusedRow]:
        for row in batch.filter(self._lacks_key(batch)).to_pylist():
            missing = next(name for name in self._table.key if row[name] is None)
            yield RefusedRow(msgspec.json.encode(row, enc_hook=str), f"the row has no {missing!r}, a part of the key")

    def _with_keys(self, staged: Staged, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in staged.batches():
            if self._identity.refused is not None:
                batch = batch.filter(pc.invert(self._lacks_key(batch)))
            yield batch.cast(schema)

    def _lacks_key(self, batch: pa.RecordBatch) -> pa.Array:
        lacks = pa.array([False] * batch.num_rows, pa.bool_())
        for name in self._table.key:
            lacks = pc.or_(lacks, pc.is_null(batch.column(name)))
        return lacks


def _stored(schema: StructType, table: LakeTable) -> pa.Schema:
    """The columns that the table gets."""
    return pa.schema(
        field.with_nullable(True)
        for field in in_utc(to_arrow_schema(schema, timezone="UTC"))
        if field.name != table.deletes
    )
