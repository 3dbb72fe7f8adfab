"""Iceberg tables: a writer's position is a property of the table, changed in the same commit as the snapshot."""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, DeliveryError, MissingExtraError
from penstock.lakes.commits import LakeCommit, commit_of
from penstock.lakes.formats import Compaction, ConflictError, TableChange
from penstock.model.clock import SystemClock

try:
    from pyiceberg import expressions as typed_expressions
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NamespaceAlreadyExistsError,
        NoSuchTableError,
        ServerError,
        ServiceUnavailableError,
        TableAlreadyExistsError,
        ValidationException,
    )
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from sqlalchemy.exc import IntegrityError, OperationalError
except ImportError as error:
    raise MissingExtraError("an Iceberg table", "iceberg") from error

expressions: Any = typed_expressions
"""Its types describe only construction by keywords."""
_POSITION: Final = "penstock.position."
_PROPERTIES: Final = {
    # Each commit writes a new file of metadata: the old ones are deleted.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergFormat:
    """An Iceberg table by `pyiceberg`. `penstock.lakes.formats.TableFormat` is its contract.

    A commit is refused if the table has any newer snapshot than the one that was loaded. pyiceberg would then repeat
    it by itself, although the rows may be there: this is switched off, and the caller checks positions first.
    """

    def __init__(self, name: str, catalog: str | Mapping[str, str] | Catalog, label: str) -> None:
        self._name = name
        self._label = label
        self._given = catalog
        self._catalog: Catalog | None = None if isinstance(catalog, str | Mapping) else catalog
        self._table: Table | None = None

    def load(self) -> bool:
        with _Refusals(self._label):
            try:
                if self._table is not None:
                    self._table.refresh()
                else:
                    self._table = self._open_catalog().load_table(self._name)
            except NoSuchTableError:
                self._table = None
                return False
        return True

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        namespace = self._name.rpartition(".")[0]
        with _Refusals(self._label):
            catalog = self._open_catalog()
            with contextlib.suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace_if_not_exists(namespace)
            try:
                with catalog.create_table_transaction(self._name, schema, properties=_PROPERTIES) as transaction:
                    if partition_by:
                        with transaction.update_spec() as spec:
                            for column in partition_by:
                                spec.add_identity(column)
            except TableAlreadyExistsError as error:
                raise ConflictError(str(error)) from error

    def schema(self) -> pa.Schema:
        return pa.schema([_plain(field) for field in self._loaded.schema().as_arrow()])

    def version(self) -> int | None:
        snapshot = self._loaded.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def position(self, application: str) -> int | None:
        found = self._loaded.properties.get(_POSITION + application)
        return None if found is None else int(found)

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with _Refusals(self._label), self._begin() as transaction, transaction.update_schema() as update:
            update.union_by_name(pa.schema(fields))

    def write(self, change: TableChange, positions: Mapping[str, int], metadata: Mapping[str, str]) -> int:
        rows = change.rows()
        if isinstance(rows, pa.RecordBatchReader) and self._loaded.spec().fields:
            rows = rows.read_all()  # pyiceberg cannot stream into a partitioned table
        with _Refusals(self._label), self._begin() as transaction:
            if change.replaces_all:
                _delete(transaction, expressions.AlwaysTrue())
            if change.key and not change.replaces_all:
                assert isinstance(rows, pa.Table), "rows with a key come as a table"
                self._upsert(transaction, rows, change, metadata)
            else:
                # Without rows this still makes a snapshot, which holds the metadata and notices other writers.
                transaction.append(rows, snapshot_properties=dict(metadata))
            transaction.set_properties({_POSITION + each: str(version) for each, version in positions.items()})
        version = self.version()
        assert version is not None, "it was just committed"
        return version

    def commits(self) -> Iterator[LakeCommit]:
        snapshot = self._loaded.current_snapshot()
        while snapshot is not None:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            yield commit_of(snapshot.snapshot_id, snapshot.timestamp_ms, summary)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._loaded.snapshot_by_id(parent)

    def compact(self, compaction: Compaction) -> int:
        groups: dict[tuple[int, str], list[FileScanTask]] = {}
        for task in self._loaded.scan().plan_files():
            if not task.delete_files and task.file.file_size_in_bytes < compaction.target_bytes // 2:
                groups.setdefault((task.file.spec_id, repr(task.file.partition)), []).append(task)
        if sum(map(len, groups.values())) < compaction.small_files:
            return 0
        count = 0
        for tasks in groups.values():
            for together in _bins(tasks, compaction.target_bytes):
                with _Refusals(self._label):
                    self._rewrite(together)
                count += len(together)
        return count

    def expire(self, compaction: Compaction) -> int:
        table = self._loaded
        before_ms = SystemClock().wall_ms() - int(compaction.retain_s * 1000)
        heads = {each.snapshot_id for each in table.refs().values()}
        old = [each for each in table.snapshots() if each.timestamp_ms < before_ms and each.snapshot_id not in heads]
        if not old:
            return 0
        with _Refusals(self._label):
            files = self._files_of(old)
            table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
            table.refresh()
            unused = files - self._files_of(table.snapshots())
            for path in unused:
                with contextlib.suppress(FileNotFoundError):
                    table.io.delete(path)
        return len(unused)

    @property
    def _loaded(self) -> Table:
        assert self._table is not None, "load or create comes first"
        return self._table

    def _open_catalog(self) -> Catalog:
        if self._catalog is None:
            given = self._given
            try:
                self._catalog = _load(given)
            except OperationalError as error:
                if "already exists" not in str(error):
                    raise
                self._catalog = _load(given)  # another process has created the same new database just now
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{self._label}: the catalog cannot be opened: {error}") from error
        return self._catalog

    def _begin(self) -> Transaction:
        """A transaction that is not repeated after a conflict, whatever the table's own properties say."""
        table = self._loaded
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table.transaction()

    def _upsert(
        self, transaction: Transaction, rows: pa.Table, change: TableChange, metadata: Mapping[str, str]
    ) -> None:
        """Add rows, and rewrite the files that have rows with their keys or the deleted ones.

        pyiceberg would find these by an expression with every key, which takes minutes for thousands of them, and
        breaks Arrow.
        """
        table, key = self._loaded, list(change.key)
        keys = rows.select(key)
        if change.deleted is not None:
            keys = pa.concat_tables([keys, change.deleted.select(key).cast(keys.schema)])
        replaced: list[DataFile] = []
        added: list[DataFile] = []
        if keys.num_rows:
            for task in table.scan(row_filter=_bounds(keys)).plan_files():
                found = self._read(transaction, [task])
                kept = _without(found, keys)
                if kept.num_rows < found.num_rows:
                    replaced.append(task.file)
                    added += self._written(transaction, kept)
        added += self._written(transaction, rows)
        update = transaction.update_snapshot(snapshot_properties=dict(metadata))
        with update.overwrite() if replaced else update.fast_append() as snapshot:
            for file in replaced:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)

    def _read(self, transaction: Transaction, tasks: Sequence[FileScanTask]) -> pa.Table:
        table = self._loaded
        scan = ArrowScan(transaction.table_metadata, table.io, table.schema(), expressions.AlwaysTrue())
        return scan.to_table(tasks)

    def _written(self, transaction: Transaction, rows: pa.Table) -> list[DataFile]:
        if not rows.num_rows:
            return []
        return list(_dataframe_to_data_files(transaction.table_metadata, rows, self._loaded.io))

    def _rewrite(self, tasks: Sequence[FileScanTask]) -> None:
        with self._begin() as transaction:
            added = self._written(transaction, self._read(transaction, tasks))
            with transaction.update_snapshot(snapshot_properties={"penstock.compaction": "true"}).overwrite() as change:
                for task in tasks:
                    change.delete_data_file(task.file)
                for file in added:
                    change.append_data_file(file)

    def _files_of(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """Every file that one of these snapshots needs."""
        io = self._loaded.io
        lists, manifests = set(), {}
        for snapshot in snapshots:
            lists.add(snapshot.manifest_list)
            manifests.update({each.manifest_path: each for each in snapshot.manifests(io)})
        data = {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        }
        return lists | manifests.keys() | data


def _load(catalog: str | Mapping[str, str] | Catalog) -> Catalog:
    if isinstance(catalog, str):
        return load_catalog(catalog)
    return load_catalog("penstock", **catalog) if isinstance(catalog, Mapping) else catalog


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without ids of fields, and with the usual strings and lists."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain(each) for each in kind])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind


def _delete(transaction: Transaction, which: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        transaction.delete(which)


def _bounds(keys: pa.Table) -> Any:
    """An expression for the range of these keys: files outside of it are not read."""
    bounds: list[Any] = []
    for name in keys.column_names:
        extremes = pc.min_max(keys.column(name)).as_py()
        bounds.append(expressions.GreaterThanOrEqual(name, extremes["min"]))
        bounds.append(expressions.LessThanOrEqual(name, extremes["max"]))
    return functools.reduce(expressions.And, bounds)


def _without(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows with none of these keys, in their order."""
    names = keys.column_names
    place = "__penstock_place"
    found = rows.select(names).append_column(place, pa.array(range(rows.num_rows), pa.int64()))
    wanted = keys.cast(pa.schema([found.schema.field(name).with_nullable(True) for name in names]))
    left = found.join(wanted, keys=names, join_type="left anti")
    return rows.take(left.column(place).sort())


def _bins(tasks: Sequence[FileScanTask], target_bytes: int) -> Iterator[list[FileScanTask]]:
    """Groups of at least two files, with about `target_bytes` together."""
    found: list[FileScanTask] = []
    size = 0
    for task in sorted(tasks, key=operator.attrgetter("file.file_size_in_bytes")):
        if found and size + task.file.file_size_in_bytes > target_bytes:
            if len(found) > 1:
                yield found
            found, size = [], 0
        found.append(task)
        size += task.file.file_size_in_bytes
    if len(found) > 1:
        yield found


class _Refusals:
    """Translates errors of `pyiceberg` and of its catalogs. OSError, for a store that is away, passes."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CommitFailedException | ValidationException | IntegrityError):
            raise ConflictError(str(error)) from error
        if isinstance(error, CommitStateUnknownException | ServerError | ServiceUnavailableError | OperationalError):
            raise OSError(str(error)) from error
        if isinstance(error, ValueError | pa.ArrowInvalid):
            raise DeliveryError(f"{self._label} rejected the change: {error}") from error
