"""`OpenTable`: rows and positions into one commit, whatever other writers do meanwhile."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, SchemaMismatchError, StoreUnavailableError
from penstock.lakes.commits import LakeCommit, Move, first_with, offsets_at
from penstock.lakes.formats import Compaction, ConflictError, Rows, TableChange
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry

if TYPE_CHECKING:
    from penstock.lakes.table import LakeTable

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 30
_AGAIN: Final = Retry(first_delay_s=0.02, max_delay_s=1.0)


@dataclass(frozen=True, slots=True)
class Delete:
    """Returned in place of a row: the row with this key is deleted. The key is a dict of its columns."""

    key: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.key, Mapping):
            raise ConfigError(
                f"Delete({self.key!r}): give the key as a dict of its columns, such as Delete({{'id': 7}})"
            )


class OpenTable:
    """An open lake table. Used by one thread.

    Every commit checks on the version that it builds on that its writer's position is still the expected one. So two
    writers that have read the same records cannot both commit them, and one that is not sure whether its commit
    arrived can repeat it.
    """

    def __init__(self, table: LakeTable) -> None:
        self.table = table
        self.label = table.label
        self._format = table.open_format()
        self._random = random.Random()

    def exists(self) -> bool:
        """Read the newest version. False if there is no such table."""
        with _Reaching(self.label):
            return self._format.load()

    def schema(self) -> pa.Schema | None:
        """The columns of the table now; None if there is no table."""
        return self._format.schema() if self.exists() else None

    def version(self) -> int | None:
        """The newest version: Delta's number, or the id of Iceberg's snapshot."""
        return self._format.version() if self.exists() else None

    def last_version(self, application: str) -> int | None:
        """The position of a writer; None if it has committed nothing here."""
        return self._format.position(application) if self.exists() else None

    def positions(self, applications: Sequence[str]) -> dict[str, int | None]:
        """The positions of several writers, in one version of the table."""
        exists = self.exists()
        return {each: self._format.position(each) if exists else None for each in applications}

    def evolve(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns of `schema` that it lacks.

        Raises SchemaMismatchError if it lacks some and `evolve` is off, or has one with a type that these values do
        not fit into.
        """
        for attempt in itertools.count(1):
            try:
                with _Reaching(self.label):
                    if not self._format.load():
                        self._check_key(schema)
                        wanted = in_utc(schema if self.table.schema is None else self.table.schema)
                        self._format.create(wanted, tuple(self.table.partition_by))
                        continue
                    new = self._missing_fields(schema)
                    if new:
                        self._format.add_columns(new)
                        logger.info("%s: added %s", self.label, ", ".join(each.name for each in new))
                return
            except ConflictError as error:
                self._wait(attempt, error)

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaMismatchError if rows with these columns can never be written. The table is not changed."""
        with _Reaching(self.label):
            if not self._format.load():
                self._check_key(schema)
                return
            self._missing_fields(schema)

    def commit(
        self,
        rows: Callable[[], Rows],
        moves: Sequence[Move],
        metadata: Mapping[str, str],
        *,
        deleted: pa.Table | None = None,
        replaces_all: bool = False,
    ) -> bool:
        """Commit rows with the positions up to which their writers have read.

        False, and nothing is changed, if the table has other positions than the moves start from. True if it has those
        after the moves already, because an earlier attempt has arrived. `rows` is called for each attempt. The table
        must exist: see `evolve`. With a key, see `latest_rows`.
        """
        positions = {move.application: move.version for move in moves}
        for attempt in itertools.count(1):
            try:
                with _Reaching(self.label):
                    self._format.load()
                    now = {each: self._format.position(each) for each in positions}
                    if now == positions:
                        return True
                    if any(now[move.application] != move.after for move in moves):
                        return False
                    schema = self._format.schema()
                    change = TableChange(
                        lambda schema=schema: aligned(rows(), schema, self.label),  # type: ignore[misc]
                        () if replaces_all else tuple(self.table.key),
                        deleted,
                        replaces_all,
                    )
                    self._format.write(change, positions, metadata)
                return True
            except ConflictError as error:
                self._wait(attempt, error)
        raise AssertionError("the loop above has no end")

    def commits(self) -> Iterator[LakeCommit]:
        """The commits of the table that are still known, newest first."""
        return self._format.commits() if self.exists() else iter(())

    def offsets_of(self, version: int, *, group: str | None = None) -> dict[tuple[str, int], int]:
        """See `LakeTable.offsets_of`."""
        return offsets_at(self.commits(), version, group, self.label)

    def version_of(self, topic: str, partition: int, offset: int, *, group: str | None = None) -> int | None:
        """See `LakeTable.version_of`."""
        return first_with(list(self.commits()), topic, partition, offset, group)

    def compact(self, compaction: Compaction | None = None) -> int:
        """See `LakeTable.compact`. Conflicts with other writers are retried."""
        settings = Compaction() if compaction is None else compaction
        for attempt in itertools.count(1):
            try:
                with _Reaching(self.label):
                    if not self._format.load():
                        return 0
                    count = self._format.compact(settings)
                    self._format.load()
                    self._format.expire(settings)
                return count
            except ConflictError as error:
                self._wait(attempt, error)
        raise AssertionError("the loop above has no end")

    def _missing_fields(self, schema: pa.Schema) -> list[pa.Field]:
        known = self._format.schema()
        _check_types(schema, known, self.label)
        new = [field.with_nullable(True) for field in schema if field.name not in known.names]
        self._check_key(known if not new else pa.schema([*known, *new]))
        if new and not self.table.evolve:
            raise SchemaMismatchError(
                f"{self.label} has no column {new[0].name!r}, and evolve is off: add the column, or omit evolve=False"
            )
        return new

    def _check_key(self, schema: pa.Schema) -> None:
        for what, names in (("key", self.table.key), ("partition_by", self.table.partition_by)):
            missing = [name for name in names if name not in schema.names]
            if missing:
                raise SchemaMismatchError(
                    f"{self.label}: {what} names {missing[0]!r}, which is not among the columns "
                    f"{', '.join(schema.names)}"
                )

    def _wait(self, attempt: int, error: ConflictError) -> None:
        logger.info("%s: another writer was faster: %s", self.label, error)
        if attempt >= _ATTEMPTS:
            raise StoreUnavailableError(
                f"{self.label}: {attempt} attempts to commit lost to other writers: {error}. Let fewer writers commit, "
                "or less often"
            ) from error
        SystemClock().sleep(_AGAIN.backoff_s(attempt, self._random))


def aligned(rows: Rows, schema: pa.Schema, label: str) -> Rows:
    """The rows with exactly the columns of a table. What they lack is null; nothing is narrowed.

    Raises SchemaMismatchError for a column that the table lacks, or whose values do not fit into its type.
    """
    if rows.schema.equals(schema):
        return rows
    unknown = [name for name in rows.schema.names if name not in schema.names]
    if unknown:
        raise SchemaMismatchError(f"{label} has no column {unknown[0]!r}: add it, or omit evolve=False")
    _check_types(rows.schema, schema, label)
    if isinstance(rows, pa.Table):
        return pa.Table.from_batches([_aligned(each, schema) for each in rows.to_batches()], schema)
    return pa.RecordBatchReader.from_batches(schema, (_aligned(batch, schema) for batch in rows))


def in_utc(schema: pa.Schema) -> pa.Schema:
    """The schema with time zones changed to UTC, the only one of lake tables. The moments stay the same."""
    return pa.schema([pa.field(each.name, _in_utc(each.type), each.nullable) for each in schema])


def latest_rows(
    rows: pa.Table, key: Sequence[str], deletes: str | None, label: str
) -> tuple[pa.Table, pa.Table | None]:
    """The last row of each key, and the keys whose last row deletes them.

    Raises SchemaMismatchError for a row whose key has a null.
    """
    for name in key:
        if name not in rows.column_names:
            raise SchemaMismatchError(f"{label}: the rows have no column {name!r}, a part of the key")
        if rows.column(name).null_count:
            raise SchemaMismatchError(f"{label}: a row has no {name!r}, a part of the key: filter such rows")
    if deletes is not None and deletes not in rows.column_names:
        raise SchemaMismatchError(f"{label}: the rows have no column {deletes!r}, which says what is deleted")
    order = "__penstock_order"
    numbered = rows.select(list(key)).append_column(order, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(order, "max")]).column(f"{order}_max")
    found = rows.take(last.take(pc.sort_indices(last)))
    if deletes is None:
        return found, None
    gone = pc.fill_null(found.column(deletes), False)
    left = found.drop_columns([deletes])
    return left.filter(pc.invert(gone)), left.filter(gone).select(list(key))


def _check_types(given: pa.Schema, known: pa.Schema, label: str) -> None:
    for field in given:
        position = known.get_field_index(field.name)
        if position >= 0 and not _widens(field.type, known.field(position).type):
            raise SchemaMismatchError(
                f"{label}: column {field.name!r} is {known.field(position).type}, and the rows have {field.type}: "
                "convert them, or write to another column. A lake table's column keeps its type"
            )


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _in_utc(each.type), each.nullable) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return kind


def _aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    if given.equals(wanted) or pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)  # in microseconds, on both sides
    if pa.types.is_signed_integer(given) and pa.types.is_signed_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale)
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binaries = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    for kinds in (strings, binaries):
        if any(each(given) for each in kinds):
            return any(each(wanted) for each in kinds)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = {field.name: field.type for field in wanted}
        return all(field.name in names and _widens(field.type, names[field.name]) for field in given)
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return (pa.types.is_list(wanted) or pa.types.is_large_list(wanted)) and _widens(
            given.value_type, wanted.value_type
        )
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _widens(given.key_type, wanted.key_type) and _widens(given.item_type, wanted.item_type)
    return False


class _Reaching:
    """Raises StoreUnavailableError for an OSError: the store may come back."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise StoreUnavailableError(f"{self._label} cannot be reached: {error}") from error
