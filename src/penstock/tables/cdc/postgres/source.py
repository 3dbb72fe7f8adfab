"""PostgreSQL as a `Source`.

The order of things makes the result right, whenever the process is killed:

1. The publication, then the replication slot: from the slot's LSN on, PostgreSQL keeps every change for us.
2. The snapshot, a range of keys at a time, each stored with how far it got. The first attempt reads the slot's own
   exported snapshot. That snapshot dies with its connection, so after a restart the remaining ranges are read as the
   rows are then, which is later than the slot's LSN.
3. The changes from the slot's LSN on. A row that was read later than that may be newer than the first changes that
   follow; but every change of it since the slot's LSN follows, in the order of commits, so the last record of each key
   is its last state. A row that was deleted before its range was read never appears; its delete follows, and is
   harmless.

A table that is added later is published first, then read, before changes are read on: the same argument holds with the
LSN at which it was published, once the transactions that were open then have ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock.databases.postgres import psycopg
from penstock.errors import ChangesLostError, ConfigError, PenstockError, SourceUnavailableError, UnsupportedTypeError
from penstock.tables.cdc.postgres.catalog import (
    ColumnInfo,
    Publication,
    TableChangedError,
    TableInfo,
    check_server,
    check_slot,
    check_tables,
    current_lsn,
    drop_slot,
    find_slot,
    find_tables,
    hides,
    oldest_transaction,
    present_names,
    release_slot,
    renamed,
    wait_for_running_transactions,
)
from penstock.tables.cdc.postgres.changes import LOOK_S, CapturedRelation, ChangeReader, Position
from penstock.tables.cdc.postgres.connections import (
    ReplicationConnection,
    SlotInUseError,
    connect,
    lsn_text,
    parsed_url,
    translated,
)
from penstock.tables.cdc.postgres.pgoutput import Relation
from penstock.tables.cdc.postgres.slots import SlotWatch
from penstock.tables.cdc.postgres.snapshot import copied_columns, range_query
from penstock.tables.cdc.postgres.values import Converter, TypeCatalog, column_json
from penstock.tables.cdc.records import Moment, Row, SnapshotWriter, TableRecords, check_topics, topic_name
from penstock.tables.cdc.snapshots import (
    ReadRange,
    pending_tables,
    refresh_batch,
    refreshed_table,
    show_tables,
    snapshot_batches,
    take_request,
)
from penstock.tables.cdc.source import (
    CAPTURE,
    LEFT,
    PENDING,
    POSITION,
    TABLE,
    CaptureProgress,
    Saved,
    SavedTable,
    SnapshotMode,
    SourceBatch,
    SourceOptions,
    check_key,
    is_chosen,
    saved_tables,
    update_tables,
)

logger = logging.getLogger(__name__)

_SLOT_WAIT_S: Final = 30.0
_SLOT_POLL_S: Final = 0.2
_CREATING: Final = "creating"
_READY: Final = "ready"


class SavedCapture(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture is."""

    source: str
    """The system identifier of the server, and the database."""
    slot: str
    publication: str
    phase: str
    form: str
    prefix: str
    is_only: bool = False
    """Without slot and changes."""


def default_name(name: str) -> str:
    """The slot and the publication of a capture, unless others are given."""
    return f"penstock_{name}"


class PostgresSource:
    """Captures tables of one PostgreSQL database."""

    def __init__(
        self, url: str, options: SourceOptions, *, slot: str | None = None, publication: str | None = None
    ) -> None:
        self._settings = parsed_url(url)
        self._options = options
        self._slot = slot or default_name(options.name)
        self._is_slot_given = slot is not None
        self._publication = Publication(publication or default_name(options.name), is_own=publication is None)
        self.progress = CaptureProgress()
        self._types = TypeCatalog()
        self._watch = SlotWatch(self._slot, str(self._settings.get("host") or ""))
        self._closing = contextlib.ExitStack()
        self._queries: psycopg.Connection[Any] | None = None
        self._tables: list[TableInfo] = []
        self._saved: dict[str, SavedTable] = {}
        self._is_again = options.snapshot is SnapshotMode.AGAIN
        self._where = f"the PostgreSQL database {self._settings.get('dbname') or 'of the user'!r} at " + str(
            self._settings.get("host") or "localhost"
        )
        self._database = ""
        self._system = ""
        self._problem: tuple[int, PenstockError] | None = None
        """What is wrong with a table, and where the log ended when that was noticed."""

    @property
    def identity(self) -> str:
        return f"postgresql:{self._system}/{self._database}"

    def topics(self) -> Mapping[str, str]:
        self._close_connections()
        self._queries = connect(self._settings, self._where)
        self._closing.callback(self._queries.close)
        with translated(self._where):
            check_server(self._queries, self._where)
            (self._database,) = self._queries.execute("SELECT current_database()").fetchone() or ("",)
            self._tables = find_tables(self._queries, self._options.tables)
            if self._publication.exists(self._queries):
                known = [each for each in self._tables if self._is_published(each)]
                narrowed = {each.oid: each for each in self._publication.narrowed(self._queries, known)}
                self._tables = [narrowed.get(each.oid, each) for each in self._tables]
            for table in self._tables:
                self._converters(table.full_name, [(each.name, each.type_oid) for each in table.columns])
        replication = ReplicationConnection(self._settings, self._where)
        with contextlib.closing(replication):
            self._system = replication.identify()
        topics = {table.full_name: topic_name(self.prefix, table.schema, table.name) for table in self._tables}
        check_topics(topics)
        return topics

    @property
    def prefix(self) -> str:
        return self._options.prefix or self._database

    def batches(self, saved: Saved, stopping: threading.Event) -> Iterator[SourceBatch]:
        assert self._queries is not None, "topics() comes first"
        exporter: list[ReplicationConnection] = []
        try:
            with translated(self._where):
                snapshot_name = yield from self._set_up(saved, stopping, exporter)
                yield from self._snapshot(snapshot_name, stopping)
                for connection in exporter:
                    connection.close()
                if self._options.snapshot is SnapshotMode.ONLY or stopping.is_set():
                    return
                yield from self._stream(stopping)
        finally:
            for connection in exporter:
                connection.close()

    def close(self) -> None:
        self._close_connections()

    def _close_connections(self) -> None:
        self._closing.close()
        self._queries = None

    def _is_published(self, table: TableInfo) -> bool:
        assert self._queries is not None
        query = "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s"
        return self._queries.execute(query, (self._publication.name, table.schema, table.name)).fetchone() is not None

    # Setting up

    def _set_up(
        self, saved: Saved, stopping: threading.Event, exporter: list[ReplicationConnection]
    ) -> Generator[SourceBatch, None, str | None]:
        """Provide publication and slot, and save what is new. Returns the name of the slot's snapshot, if it is new."""
        assert self._queries is not None
        known = msgspec.json.decode(saved[CAPTURE], type=SavedCapture) if CAPTURE in saved else None
        self._check_same(known)
        self._saved = saved_tables(saved)
        self._position = msgspec.json.decode(saved[POSITION], type=Position) if POSITION in saved else Position(0)
        is_only = self._options.snapshot is SnapshotMode.ONLY
        is_new = known is None or known.phase == _CREATING or self._is_again or (known.is_only and not is_only)
        if is_only:
            if is_new or (known is not None and not known.is_only):
                self._refuse_only(known)
                yield SourceBatch([], {CAPTURE: self._capture(_READY), **self._tables_state()})
            return None
        if is_new:
            return (yield from self._set_up_new(known, stopping, exporter))
        slot = find_slot(self._queries, self._slot, self._where)
        check_slot(slot, self._slot, self._position.lsn, self._where)
        self._check_names()
        # What must be read again is saved before the publication is changed: a kill in between forgets nothing.
        changed = self._outdated_state() | self._tables_state()
        if changed:
            yield SourceBatch([], changed)
        self._publication.provide(self._queries, self._tables, self._where)
        new = [each for table in self._tables if (each := self._saved[table.full_name]).oid == 0]
        if any(each.snapshot == PENDING for each in new):
            wait_for_running_transactions(self._queries, stopping)
            if stopping.is_set():
                return None
        if new:
            yield SourceBatch([], self._published_state())
        return None

    def _check_names(self) -> None:
        """Raise ConfigError if a table that is to be captured has another name now."""
        assert self._queries is not None
        captured = {table.full_name for table in self._tables}
        gone = {
            saved.oid: name
            for name, saved in self._saved.items()
            if saved.oid and saved.snapshot != LEFT and name not in captured
        }
        for oid, now in present_names(self._queries, list(gone)).items():
            if is_chosen(self._options.tables, gone[oid], "public"):
                raise renamed(gone[oid], now)

    def _outdated_state(self) -> dict[str, bytes | None]:
        """Note that tables must be read again that were created again, or were not published for a while."""
        assert self._queries is not None
        missing = {table.oid for table in self._publication.missing(self._queries, self._tables)}
        entries = self._publication.entries(self._queries)
        state: dict[str, bytes | None] = {}
        for table in self._tables:
            saved = self._saved.get(table.full_name)
            if saved is None or saved.snapshot == LEFT:
                continue
            is_other = saved.oid not in (0, table.oid)
            is_unpublished = table.oid in missing or (saved.oid and saved.published != entries.get(table.oid, 0))
            if not is_other and not is_unpublished:
                continue
            what = "was created again" if is_other else f"was not in publication {self._publication.name!r} for a while"
            if self._options.snapshot is SnapshotMode.NEVER:
                raise ChangesLostError(
                    f"table {table.full_name} {what}, so changes of it are lost: start once with --snapshot initial "
                    "to read the table again, or once without this table to continue without them"
                )
            logger.warning("table %s %s: all its rows are read again", table.full_name, what)
            self._saved[table.full_name] = renewed = saved.read_again(self._described(table), list(table.key))
            state[TABLE + table.full_name] = msgspec.json.encode(renewed)
        return state

    def _published_state(self) -> dict[str, bytes | None]:
        """Note that tables are published, and that a snapshot sees what transactions wrote before."""
        assert self._queries is not None
        entries = self._publication.entries(self._queries)
        state: dict[str, bytes | None] = {}
        for table in self._tables:
            saved = self._saved[table.full_name]
            if saved.oid == 0:
                saved = msgspec.structs.replace(saved, oid=table.oid, published=entries.get(table.oid, 0))
                self._saved[table.full_name] = saved
                state[TABLE + table.full_name] = msgspec.json.encode(saved)
        return state

    def _refuse_only(self, known: SavedCapture | None) -> None:
        if known is not None and not known.is_only and known.phase == _READY and not self._is_again:
            raise ConfigError(
                f"the capture {self._options.name!r} already follows changes: choose another --name for --snapshot only"
            )

    def _set_up_new(
        self, known: SavedCapture | None, stopping: threading.Event, exporter: list[ReplicationConnection]
    ) -> Generator[SourceBatch, None, str | None]:
        assert self._queries is not None
        slot = find_slot(self._queries, self._slot, self._where)
        owned = None if known is None or known.is_only else known.slot
        is_ours = owned == self._slot or self._is_again
        if slot is not None and not is_ours and not self._is_slot_given:
            raise ConfigError(
                f"{self._where} has a replication slot {self._slot!r}, but this stream has no capture of the name "
                f"{self._options.name!r}: it is that of a capture into another stream (choose another --name), or this "
                "stream's state was deleted. To start over with a new snapshot: --snapshot again; to continue from "
                f"where the slot stands, without what was read before it: --slot {self._slot}"
            )
        snapshot_name = ""
        if slot is not None and not is_ours:
            # Nothing is saved before all is ready: a slot that is in the state was created by the capture, and is
            # dropped when it starts over.
            if slot.confirmed_lsn == 0:
                raise SourceUnavailableError(f"the replication slot {self._slot!r} of {self._where} is being created")
            if not self._publication.exists(self._queries):
                raise ConfigError(
                    f"the replication slot {self._slot!r} is older than its publication: create the publication "
                    f"{self._publication.name!r} first, then the slot, or let the capture create both"
                )
            self._publication.provide(self._queries, self._tables, self._where)
            check_slot(slot, self._slot, slot.confirmed_lsn, self._where)
            if owned is not None:
                drop_slot(self._queries, owned, self._where)
            start = slot.confirmed_lsn
        else:
            yield SourceBatch([], {CAPTURE: self._capture(_CREATING)})
            for abandoned in {self._slot, owned or self._slot}:
                drop_slot(self._queries, abandoned, self._where)
            self._publication.provide(self._queries, self._tables, self._where)
            replication = ReplicationConnection(self._settings, self._where)
            exporter.append(replication)
            start, snapshot_name = replication.create_slot(
                self._slot, export=True, stopping=stopping, on_wait=self._what_it_waits_for
            )
        self._position = Position(start)
        state = self._tables_state(is_new=True) | self._published_state()
        self._is_again = False
        yield SourceBatch(
            [],
            {CAPTURE: self._capture(_READY), POSITION: msgspec.json.encode(self._position), **state},
        )
        return snapshot_name

    def _what_it_waits_for(self) -> str:
        with contextlib.closing(connect(self._settings, self._where)) as connection:
            return oldest_transaction(connection)

    def _check_same(self, known: SavedCapture | None) -> None:
        if known is None or self._is_again:
            return
        wanted = {"source": self.identity, "form": str(self._options.form), "prefix": self.prefix}
        for field, value in wanted.items():
            was = getattr(known, field)
            if was != value:
                what = {"source": "captures", "form": "writes the form", "prefix": "has the prefix"}[field]
                raise ConfigError(
                    f"the capture {self._options.name!r} in this stream {what} {was!r}, not {value!r}: choose another "
                    "--name, or start over with --snapshot again"
                )
        if (
            known.phase == _READY
            and not known.is_only
            and (known.slot, known.publication) != (self._slot, self._publication.name)
        ):
            raise ConfigError(
                f"the capture {self._options.name!r} in this stream uses the slot {known.slot!r} and the publication "
                f"{known.publication!r}: pass these, or choose another --name"
            )

    def _capture(self, phase: str) -> bytes:
        return msgspec.json.encode(
            SavedCapture(
                source=self.identity,
                slot=self._slot,
                publication=self._publication.name,
                phase=phase,
                form=str(self._options.form),
                prefix=self.prefix,
                is_only=self._options.snapshot is SnapshotMode.ONLY,
            )
        )

    def _tables_state(self, *, is_new: bool = False) -> dict[str, bytes | None]:
        """What to save about tables that are new, or no longer captured."""
        described = {table.full_name: (self._described(table), list(table.key)) for table in self._tables}
        return update_tables(self._saved, described, self._options.snapshot, is_new=is_new)

    def _described(self, table: TableInfo) -> list[tuple[str, str]]:
        return [(column.name, self._types.name_of(column.type_oid)) for column in table.columns]

    # The snapshot

    def _snapshot(self, snapshot_name: str | None, stopping: threading.Event) -> Iterator[SourceBatch]:
        tables = {table.full_name: table for table in self._tables}
        show_tables(self.progress, {name: table.rows for name, table in tables.items()}, self._saved)
        waiting = pending_tables(tables, self._saved)
        if not waiting:
            return
        self.progress.phase = "snapshot"
        connection = connect(self._settings, self._where)
        looked_s = 0.0
        with contextlib.closing(connection):
            if snapshot_name:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot_name}'".encode())
            for name in waiting:
                for batch in self._table_snapshot(connection, tables[name], stopping):
                    if time.monotonic() - looked_s >= LOOK_S and self._options.snapshot is not SnapshotMode.ONLY:
                        looked_s = time.monotonic()
                        self._look_at_slot()  # nothing is confirmed during a snapshot: the log fills
                    yield batch

    def _table_snapshot(
        self, connection: psycopg.Connection[Any], table: TableInfo, stopping: threading.Event
    ) -> Iterator[SourceBatch]:
        saved = self._saved[table.full_name]
        names = [column.name for column in table.columns]
        records = self._records_of(table.full_name, names, saved.key, saved.version)

        def moment() -> Moment:
            return Moment(_now_ms(), self._position.lsn, b"", is_snapshot=True)

        read, limit = self._range_reader(connection, table), self._options.snapshot_rows
        return snapshot_batches(table.full_name, self._saved, records, read, moment, limit, self.progress, stopping)

    def _range_reader(self, connection: psycopg.Connection[Any], table: TableInfo) -> ReadRange:
        converters = self._converters(table.full_name, [(column.name, column.type_oid) for column in table.columns])
        names = [column.name for column in table.columns]
        key_places = [names.index(name) for name in table.key]

        def read(after: list[str] | None, limit: int, write: SnapshotWriter, rows: list[Row]) -> list[str] | None:
            last = after
            for columns in copied_columns(connection, range_query(table, after, limit), len(names)):
                converted = [column_json(column, convert) for column, convert in zip(columns, converters, strict=True)]
                rows += write.of_columns(converted)
                last = [(columns[place][-1] or b"").decode() for place in key_places]
            return last

        return read

    def refresh(self, table: str, request: str) -> bool:
        return take_request(self._saved, table, request)

    def _refresh_some(self, stored: Collection[int], lsn: int) -> Iterator[SourceBatch]:
        """The next rows of a table that is read again; none while a query does not see all stored transactions.

        PostgreSQL sends a transaction when its commit is in the log, which is a little before queries see it; with
        synchronous replication, much before. Rows without it would replace newer ones.
        """
        assert self._queries is not None
        name = refreshed_table([each.full_name for each in self._tables], self._saved)
        if name is None:
            return
        check_tables(self._queries, [each for each in self._tables if each.full_name == name], self._publication)
        (table,) = self._publication.narrowed(self._queries, find_tables(self._queries, [name]))
        saved = self._saved[name]
        check_key(name, saved, table.key)
        records = self._records_of(name, [column.name for column in table.columns], saved.key, saved.version)
        at = Moment(_now_ms(), lsn, b"", is_snapshot=True)
        read = self._range_reader(self._queries, table)
        self._queries.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            (visible,) = self._queries.execute("SELECT txid_current_snapshot()::text").fetchone() or ("",)
            if hides(visible, stored):
                return
            batch, refreshed = refresh_batch(name, self._saved, records, read, at, self._options.snapshot_rows)
        finally:
            self._queries.execute("ROLLBACK")
        yield batch
        self._saved[name] = refreshed
        self.progress.snapshot_rows += len(batch.records)

    # Changes

    def _stream(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        assert self._queries is not None
        self._problem = None
        self.progress.phase = "streaming"
        self.progress.position = lsn_text(self._position.lsn)
        replication = self._start_replication(stopping)
        if replication is None:
            return
        with contextlib.closing(replication):
            reader = ChangeReader(
                replication,
                self._queries,
                self._describe,
                self._position,
                self.progress,
                batch_rows=self._options.batch_rows,
                heartbeat_s=self._options.heartbeat_s,
                look=self._look,
                refresh=self._refresh_some,
            )
            yield from reader.batches(stopping)

    def _look(self, stored_lsn: int) -> None:
        """Look after the slot and the tables. What is wrong with a table is raised once all before it is stored."""
        assert self._queries is not None
        self._look_at_slot()
        if self._problem is None:
            try:
                check_tables(self._queries, self._tables, self._publication)
                self._check_entries()
            except (TableChangedError, ConfigError) as error:
                self._problem = (current_lsn(self._queries), error)
        if self._problem is not None and stored_lsn >= self._problem[0]:
            raise self._problem[1]

    def _check_entries(self) -> None:
        """Raise TableChangedError for a table that was removed from the publication and added again."""
        assert self._queries is not None
        entries = self._publication.entries(self._queries)
        for table in self._tables:
            if self._saved[table.full_name].published != entries.get(table.oid, 0):
                raise TableChangedError(f"table {table.full_name} was removed from the publication, and added again")

    def _look_at_slot(self) -> None:
        assert self._queries is not None
        found = self._watch.look(self._queries)
        if found is not None:
            if self.progress.phase == "snapshot":
                self.progress.lag_bytes = found.behind_bytes
            self.progress.room_bytes, self.progress.time_to_loss_s = found.room_bytes, found.time_to_loss_s
            self.progress.written_bytes_per_s = found.written_bytes_per_s

    def _start_replication(self, stopping: threading.Event) -> ReplicationConnection | None:
        """None if stopped. An earlier capture of this name is fenced already, and loses the slot."""
        assert self._queries is not None
        deadline_s = time.monotonic() + _SLOT_WAIT_S
        while True:
            replication = ReplicationConnection(self._settings, self._where)
            try:
                replication.start(self._slot, self._position.lsn, self._publication.name)
                # Now nobody else can read from it, or put another in its place, as during a long snapshot.
                slot = find_slot(self._queries, self._slot, self._where)
                check_slot(slot, self._slot, self._position.lsn, self._where)
                return replication
            except SlotInUseError:
                replication.close()
                if time.monotonic() > deadline_s:
                    raise
                slot = find_slot(self._queries, self._slot, self._where)
                if slot is not None:
                    with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                        release_slot(self._queries, slot)
            except BaseException:
                replication.close()
                raise
            if stopping.wait(_SLOT_POLL_S):
                return None

    def _describe(self, relation: Relation) -> CapturedRelation | None:
        """A table is known by its oid: the log has the name that it had then. It is captured under the one it has."""
        assert self._queries is not None
        table = next((each for each in self._tables if each.oid == relation.oid), None)
        named = next((each for each in self._tables if each.full_name == relation.full_name), None)
        if table != named:
            # Raises, unless the log is about the past: a table that was dropped since, or had another name.
            check_tables(self._queries, [each for each in (table, named) if each is not None], self._publication)
        if table is None:
            return None
        name = table.full_name
        saved = self._saved[name]
        columns = [(column.name, column.type_oid) for column in relation.columns]
        try:
            converters = self._converters(name, columns)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(
                f"{error}. Rows with it are in the database's log already: then start over with --snapshot again"
            ) from error
        names = [column for column, _ in columns]
        key = saved.key
        if relation.identity in "di":
            logged = {column.name for column in relation.columns if column.is_key}
            if logged != set(saved.key):
                check_key(name, saved, sorted(logged))
        elif not set(key) <= set(names):
            raise ConfigError(
                f"table {name} has lost its key column {min(set(key) - set(names))!r}: give it a primary key, and "
                "start over with --snapshot again, or leave the table out"
            )
        described = [(column, self._types.name_of(oid)) for column, oid in columns]
        state = None
        if described != [tuple(each) for each in saved.columns]:
            saved = msgspec.structs.replace(saved, columns=described, version=saved.version + 1)
            self._saved[name] = saved
            state = (TABLE + name, msgspec.json.encode(saved))
            logger.info("the columns of table %s have changed: version %d", name, saved.version)
        types = {column.name: column.type_name for column in table.columns}
        return CapturedRelation(
            relation,
            self._records_of(name, names, key, saved.version),
            converters,
            tuple(names.index(each) for each in key),
            tuple(ColumnInfo(each, 0, types.get(each, "text")) for each in key),
            table.sql_name,
            state,
        )

    def _converters(self, table: str, columns: list[tuple[str, int]]) -> list[Converter]:
        assert self._queries is not None
        return [self._types.converter(oid, table, name, self._queries) for name, oid in columns]

    def _records_of(self, table: str, columns: list[str], key: list[str], version: int) -> TableRecords:
        schema, _, name = table.partition(".")
        origin = {
            "connector": "postgresql",
            "name": self.prefix,
            "db": self._database,
            "schema": schema,
            "table": name,
            "schemaVersion": version,
        }
        topic = topic_name(self.prefix, schema, name)
        return TableRecords(topic, columns, key, self._options.form, origin, "lsn", _now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
