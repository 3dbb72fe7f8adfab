"""Delta tables: a writer's position is an application transaction in Delta's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.errors import DeliveryError, MissingExtraError, SchemaMismatchError
from penstock.lakes.commits import LakeCommit, commit_of
from penstock.lakes.formats import Compaction, ConflictError, Rows, TableChange

try:
    import deltalake
    import deltalake.exceptions
    from deltalake.schema import Schema
except ImportError as error:
    raise MissingExtraError("a Delta table", "delta") from error

_DELETED: Final = "__penstock_deleted"
_SMALLEST_RETENTION_H: Final = 168
"""What Delta accepts without a question."""


class DeltaFormat:
    """A Delta table by `deltalake`. `penstock.lakes.formats.TableFormat` is its contract.

    A commit is made on the version that was loaded: Delta refuses it if one of its application transactions has
    changed since, while appends of other writers do not disturb it.
    """

    def __init__(self, path: str, label: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._path = path.replace("s3a://", "s3://", 1)
        self._label = label
        self._storage_options = dict(storage_options or {})
        self._table: deltalake.DeltaTable | None = None

    def load(self) -> bool:
        with _Refusals(self._label):
            if self._table is not None:
                self._table.update_incremental()
                return True
            try:
                self._table = deltalake.DeltaTable(self._path, storage_options=self._storage_options)
            except deltalake.exceptions.TableNotFoundError:
                return False
        return True

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if "://" not in self._path:
            Path(self._path).mkdir(parents=True, exist_ok=True)
        with _Refusals(self._label):
            try:
                deltalake.DeltaTable.create(
                    self._path,
                    schema=_schema_of(schema, self._label),
                    mode="error",
                    partition_by=list(partition_by) or None,
                    storage_options=self._storage_options,
                )
            except deltalake.exceptions.DeltaError as error:
                if "already exists" in str(error):
                    raise ConflictError(str(error)) from error
                raise

    def schema(self) -> pa.Schema:
        return pa.schema(self._loaded.schema().to_arrow()).remove_metadata()

    def version(self) -> int | None:
        return self._loaded.version()

    def position(self, application: str) -> int | None:
        return self._loaded.transaction_version(application)

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with _Refusals(self._label):
            self._loaded.alter.add_columns(list(_schema_of(pa.schema(fields), self._label).fields))

    def write(self, change: TableChange, positions: Mapping[str, int], metadata: Mapping[str, str]) -> int:
        properties = deltalake.CommitProperties(
            custom_metadata=dict(metadata),
            app_transactions=[deltalake.Transaction(each, version) for each, version in positions.items()],
        )
        table, rows = self._loaded, change.rows()
        with _Refusals(self._label):
            if change.key:
                before = table.version()
                self._merge(table, rows, change, properties)
                if table.version() == before:  # nothing matched, so nothing was committed
                    _commit_nothing(table, properties)
            elif isinstance(rows, pa.Table) and not rows.num_rows and not change.replaces_all:
                _commit_nothing(table, properties)
            else:
                deltalake.write_deltalake(
                    table, rows, mode="overwrite" if change.replaces_all else "append", commit_properties=properties
                )
        return table.version()

    def commits(self) -> Iterator[LakeCommit]:
        for entry in self._loaded.history():
            yield commit_of(entry["version"], entry.get("timestamp", 0), entry)

    def compact(self, compaction: Compaction) -> int:
        table = self._loaded
        sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
        if sum(size < compaction.target_bytes // 2 for size in sizes) < compaction.small_files:
            return 0
        with _Refusals(self._label):
            found: dict[str, Any] = table.optimize.compact(target_size=compaction.target_bytes)
        return int(found["numFilesRemoved"])

    def expire(self, compaction: Compaction) -> int:
        retention_h = int(compaction.retain_s // 3600)
        enforces = retention_h >= _SMALLEST_RETENTION_H
        with _Refusals(self._label):
            unused = self._loaded.vacuum(retention_h, dry_run=True, enforce_retention_duration=enforces)
            if not unused:
                return 0  # each vacuum that is no dry run makes two commits
            return len(self._loaded.vacuum(retention_h, dry_run=False, enforce_retention_duration=enforces))

    @property
    def _loaded(self) -> deltalake.DeltaTable:
        assert self._table is not None, "load or create comes first"
        return self._table

    def _merge(
        self, table: deltalake.DeltaTable, rows: Rows, change: TableChange, properties: deltalake.CommitProperties
    ) -> None:
        assert isinstance(rows, pa.Table), "rows with a key come as a table"
        names = rows.column_names
        source = rows.append_column(_DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
        if change.deleted is not None and change.deleted.num_rows:
            count = change.deleted.num_rows
            gone = [
                change.deleted.column(field.name) if field.name in change.key else pa.nulls(count, field.type)
                for field in rows.schema
            ]
            schema = pa.schema([field.with_nullable(True) for field in source.schema])
            deleted = pa.Table.from_arrays([*gone, pa.array([True] * count, pa.bool_())], schema=schema)
            source = pa.concat_tables([source.cast(schema), deleted])
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        (
            table.merge(
                source,
                predicate=" AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in change.key),
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            .when_matched_delete(predicate=f"s.{_DELETED}")
            .when_matched_update(updates=values)
            .when_not_matched_insert(updates=values, predicate=f"NOT s.{_DELETED}")
            .execute()
        )


def _commit_nothing(table: deltalake.DeltaTable, properties: deltalake.CommitProperties) -> None:
    """Commit positions and metadata without rows."""
    table.create_write_transaction(
        actions=[],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
    )
    table.update_incremental()


def _schema_of(schema: pa.Schema, label: str) -> Schema:
    try:
        return Schema.from_arrow(schema)
    except Exception as error:  # deltalake raises no class of its own here
        raise SchemaMismatchError(f"{label}: {str(error).splitlines()[0]}: convert the column") from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class _Refusals:
    """Translates errors of `deltalake`. OSError, for a store that cannot be reached, passes."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, deltalake.exceptions.CommitFailedError):
            raise ConflictError(str(error)) from error
        if isinstance(error, deltalake.exceptions.SchemaMismatchError):
            raise SchemaMismatchError(f"{self._label} rejected the rows: {error}") from error
        if isinstance(error, deltalake.exceptions.DeltaError | pa.ArrowInvalid):
            raise DeliveryError(f"{self._label} rejected the change: {error}") from error
