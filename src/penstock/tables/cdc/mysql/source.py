"""MySQL and MariaDB as a `Source`.

The order of things makes the result right, whenever the process is killed:

1. A position in the binlog, together with a snapshot of exactly that moment: every change since then is in the binlog,
   as long as the server keeps it.
2. The snapshot, a range of keys at a time, each stored with how far it got. The first attempt reads that one snapshot.
   It dies with its connection, so after a restart the remaining ranges are read as the rows are then.
3. The changes from the position on. A row that was read later than that may be newer than the first changes that
   follow; but every change of it since the position follows, in the order of commits, so the last record of each key is
   its last state. A row that was deleted before its range was read never appears; its delete follows, and is harmless.

A table that is added later is read before changes are read on; its changes count from that snapshot's position.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock.errors import ChangesLostError, ConfigError, SourceUnavailableError
from penstock.tables.cdc.mysql import binlog, changes, logs
from penstock.tables.cdc.mysql.catalog import (
    MysqlTable,
    ServerInfo,
    check_replica,
    find_server,
    find_table,
    find_tables,
)
from penstock.tables.cdc.mysql.changes import BinlogPosition, BinlogReader, Place
from penstock.tables.cdc.mysql.connections import BinlogConnection, connect, parsed_url, pymysql, translated
from penstock.tables.cdc.mysql.snapshot import begin_snapshot, binlog_status, current_position, range_reader
from penstock.tables.cdc.mysql.tables import CapturedTables, now_ms
from penstock.tables.cdc.records import CaptureFormat, Moment, check_topics, topic_name
from penstock.tables.cdc.snapshots import (
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
    POSITION,
    TABLE,
    CaptureProgress,
    Saved,
    SavedTable,
    SnapshotMode,
    SourceBatch,
    SourceOptions,
    check_key,
    saved_tables,
    update_tables,
)

logger = logging.getLogger(__name__)

_SINCE: Final = "since/"
"""Before the name of a table that was added later: the key of the place from which its changes count."""
_PROBE_S: Final = 10.0
_PROBED_EVENTS: Final = 5
_REFRESH_S: Final = 0.25
"""How long rows are read from one snapshot while changes wait, when a table is read again."""


class SavedMysql(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture is."""

    source: str
    """The server and the database."""
    server_id: int
    """The number by which the server knows this capture."""
    form: str
    prefix: str
    is_only: bool = False
    """Without changes."""


class MysqlSource:
    """Captures tables of one server."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        self._settings = parsed_url(url)
        self._options = options
        self.progress = CaptureProgress()
        self._schema: str = self._settings["database"]
        self._where = f"the database {self._schema!r} at {self._settings['host']}:{self._settings['port']}"
        self._queries: Any = None
        self._server: ServerInfo | None = None
        self._tables: list[MysqlTable] = []
        self._saved: dict[str, SavedTable] = {}
        self._since: dict[str, Place] = {}
        self._position = BinlogPosition("", 0)
        self._server_id = 0
        self._is_again = options.snapshot is SnapshotMode.AGAIN
        self._watch = logs.BinlogWatch()
        self._looked_s = -math.inf
        self._may_snapshot = False
        """Whether this user is known to have the right to begin a snapshot."""

    @property
    def identity(self) -> str:
        server = self._found_server
        own = server.settings.get("server_uuid") or server.settings.get("server_id", "")
        return f"{server.connector}:{own}/{self._schema}"

    @property
    def prefix(self) -> str:
        return self._options.prefix or self._schema

    def topics(self) -> Mapping[str, str]:
        self.close()
        self._queries = connect(self._settings, self._where)
        with translated(self._where):
            self._server = find_server(self._queries, self._where)
            self._tables = find_tables(self._queries, self._options.tables, self._schema, self._server)
            if self._options.snapshot is not SnapshotMode.ONLY:
                check_replica(self._queries, self._server, self._where)
                self._check_binlog()
        topics = {table.full_name: topic_name(self.prefix, table.schema, table.name) for table in self._tables}
        check_topics(topics)
        return topics

    def batches(self, saved: Saved, stopping: threading.Event) -> Iterator[SourceBatch]:
        reading = connect(self._settings, self._where)
        with contextlib.closing(reading), translated(self._where):
            yield from self._set_up(saved, reading, stopping)
            yield from self._snapshot(reading, stopping)
        if self._options.snapshot is SnapshotMode.ONLY or stopping.is_set():
            return
        yield from self._stream(stopping)

    def close(self) -> None:
        if self._queries is not None:
            self._queries.close()
            self._queries = None

    @property
    def _found_server(self) -> ServerInfo:
        assert self._server is not None, "topics() comes first"
        return self._server

    # Setting up

    def _check_binlog(self) -> None:
        """Raise ConfigError unless this user may read the binlog, and it has the changes of all tables."""
        _, _, logged, ignored, *_ = (*binlog_status(self._queries, self._where), "", "")
        for table in self._tables:
            if (logged and table.schema not in logged.split(",")) or table.schema in (ignored or "").split(","):
                raise ConfigError(
                    f"{self._where} does not log changes of {table.schema!r}: remove binlog_do_db and binlog_ignore_db"
                )
        self._made_s(current_position(self._queries, self._where))

    def _made_s(self, position: BinlogPosition) -> int:
        """When the file of a position was begun, which the server tells only who may read it."""
        # With a number of its own: the server ends the connection of another reader with the same number.
        with contextlib.closing(self._binlog(_new_server_id(), "")) as probe:
            probe.start(position.file, position.pos)
            for _ in range(_PROBED_EVENTS):
                packet = probe.receive(_PROBE_S)
                header = None if packet is None else binlog.parse_header(packet)
                if header is not None and header.kind == binlog.FORMAT:
                    return header.time_s
        raise SourceUnavailableError(f"{self._where} does not describe its binlog {position.file}")

    def _set_up(self, saved: Saved, reading: Any, stopping: threading.Event) -> Iterator[SourceBatch]:
        """Save what is new, with the position of the snapshot that `reading` begins."""
        known = msgspec.json.decode(saved[CAPTURE], type=SavedMysql) if CAPTURE in saved else None
        self._check_same(known)
        self._saved = saved_tables(saved)
        is_only = self._options.snapshot is SnapshotMode.ONLY
        is_new = known is None or POSITION not in saved or self._is_again or (known.is_only and not is_only)
        if is_only and known is not None and not known.is_only and not self._is_again:
            raise ConfigError(
                f"the capture {self._options.name!r} already follows changes: choose another --name for --snapshot only"
            )
        self._server_id = self._settings.get("server_id") or (known.server_id if known else _new_server_id())
        self._since = {
            name.removeprefix(_SINCE): tuple(msgspec.json.decode(value, type=list[int]))  # type: ignore[misc]
            for name, value in saved.items()
            if name.startswith(_SINCE)
        }
        state: dict[str, bytes | None] = {CAPTURE: self._capture()}
        if is_new:
            state |= dict.fromkeys(name for name in saved if name.startswith(_SINCE))
            self._since = {}
        else:
            self._position = msgspec.json.decode(saved[POSITION], type=BinlogPosition)
            if not is_only:
                self._check_kept()
        changed = self._tables_state(is_new=is_new)
        waiting = pending_tables([table.full_name for table in self._tables], self._saved)
        if is_new or waiting:
            after = None if is_new else self._position.place
            begun = begin_snapshot(reading, self._found_server, self._where, after, stopping)
            if is_new:
                self._position = begun
                if not is_only:
                    self._position = msgspec.structs.replace(begun, made_s=self._made_s(begun))
            for name in [] if is_new else [each for each in waiting if TABLE + each in changed]:
                self._since[name] = begun.place
                state[_SINCE + name] = msgspec.json.encode(begun.place)
        yield SourceBatch([], {**state, **changed, POSITION: msgspec.json.encode(self._position)})
        self._is_again = False  # once that is stored: until then, another attempt begins anew

    def _check_same(self, known: SavedMysql | None) -> None:
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

    def _check_kept(self) -> None:
        """Raise ChangesLostError unless the server still has the changes after the position."""
        files = logs.binlog_files(self._queries)
        position = self._position
        if position.pos > files.get(position.file, -1):
            oldest = next(iter(files), "none")
            raise ChangesLostError(
                f"{self._where} no longer has the binlog {position.file} up to {position.pos:,}, where the capture is; "
                f"its oldest file is {oldest}: changes since then are lost. Take a new snapshot of all tables with "
                "--snapshot again; to prevent it, raise binlog_expire_logs_seconds (expire_logs_days)"
            )

    def _capture(self) -> bytes:
        return msgspec.json.encode(
            SavedMysql(
                source=self.identity,
                server_id=self._server_id,
                form=str(self._options.form),
                prefix=self.prefix,
                is_only=self._options.snapshot is SnapshotMode.ONLY,
            )
        )

    def _tables_state(self, *, is_new: bool) -> dict[str, bytes | None]:
        described = {
            table.full_name: ([(name, kind.full) for name, kind in table.columns], list(table.key))
            for table in self._tables
        }
        for name, table in described.items():
            saved = self._saved.get(name)
            if saved is not None and not is_new and saved.snapshot != LEFT:
                check_key(name, saved, table[1])
        return update_tables(self._saved, described, self._options.snapshot, is_new=is_new)

    # The snapshot

    def _snapshot(self, reading: Any, stopping: threading.Event) -> Iterator[SourceBatch]:
        tables = {table.full_name: table for table in self._tables}
        show_tables(self.progress, {name: table.rows for name, table in tables.items()}, self._saved)
        captured = self._captured_tables()
        for name in pending_tables(tables, self._saved):
            self.progress.phase = "snapshot"
            table = tables[name]
            for batch in snapshot_batches(
                name,
                self._saved,
                captured.records_with(name, [column for column, _ in table.columns]),
                range_reader(reading, table, table.columns),
                lambda: self._moment(self._position),
                self._options.snapshot_rows,
                self.progress,
                stopping,
            ):
                is_followed = self._options.snapshot is not SnapshotMode.ONLY
                if is_followed and time.monotonic() - self._looked_s >= changes.LOOK_S:
                    self._look(self._position)
                yield batch

    def _moment(self, position: BinlogPosition) -> Moment:
        file, place = position.place
        number = (file << 32) + place if self._options.form is CaptureFormat.FLAT else place
        return Moment(now_ms(), number, b'"file":"%b"' % position.file.encode(), is_snapshot=True)

    def _captured_tables(self) -> CapturedTables:
        options = self._options
        return CapturedTables(
            self._found_server, self._tables, self._saved, self._since, self.prefix, options.form, self._table_now
        )

    def _table_now(self, name: str) -> MysqlTable | None:
        """A table as the catalog has it now; None if there is none."""
        with translated(self._where):
            return find_table(self._queries, name, self._found_server)

    # Changes

    def _stream(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        self.progress.phase = "streaming"
        self.progress.position = self._position.shown
        with contextlib.closing(self._binlog(self._server_id, logs.PREFIX + self._options.name)) as stream:
            stream.start(self._position.file, self._position.pos)
            tables = self._captured_tables()
            reader = BinlogReader(
                stream,
                tables,
                self._position,
                self.progress,
                self._found_server.charsets,
                where=self._where,
                batch_rows=self._options.batch_rows,
                heartbeat_s=self._options.heartbeat_s,
                is_flat=self._options.form is CaptureFormat.FLAT,
                look=self._look,
                refresh=lambda stored: self._refresh_some(tables, stored, stopping),
            )
            yield from reader.batches(stopping)

    def refresh(self, table: str, request: str) -> bool:
        if not self._may_snapshot:  # in MySQL, that takes a right that changes do not need
            with translated(self._where):
                begin_snapshot(self._queries, self._found_server, self._where, None, threading.Event())
                self._queries.rollback()
            self._may_snapshot = True
        return take_request(self._saved, table, request)

    def _refresh_some(
        self, tables: CapturedTables, stored: BinlogPosition, stopping: threading.Event
    ) -> Iterator[SourceBatch]:
        """The next rows of a table that is read again, from a snapshot that is not before what is stored."""
        name = refreshed_table([table.full_name for table in self._tables], self._saved)
        if name is None:
            return
        queries, begun_s = self._queries, time.monotonic()
        with translated(self._where):
            if begin_snapshot(queries, self._found_server, self._where, stored.place, stopping).place < stored.place:
                return
            self._may_snapshot = True
            try:
                table = find_table(queries, name, self._found_server)
                if table is None:  # it was dropped, which the binlog will say
                    return
                check_key(name, self._saved[name], table.key)
                records = tables.records_with(name, [column for column, _ in table.columns])
                read = range_reader(queries, table, table.columns)
                is_over = False
                while not is_over:
                    at, limit = self._moment(stored), self._options.snapshot_rows
                    batch, refreshed = refresh_batch(name, self._saved, records, read, at, limit)
                    yield batch
                    self._saved[name] = refreshed
                    self.progress.snapshot_rows += len(batch.records)
                    is_over = refreshed.refresh is None or time.monotonic() >= begun_s + _REFRESH_S
            except pymysql.err.OperationalError as error:
                if error.args[0] not in (1054, 1412):
                    raise
                logger.info("table %s was altered after the snapshot began: %s", name, error)
            finally:
                queries.rollback()

    def _binlog(self, server_id: int, name: str) -> BinlogConnection:
        return BinlogConnection(self._settings, self._where, server_id=server_id, name=name)

    def _look(self, position: BinlogPosition) -> None:
        with translated(self._where):
            self._watch.look(self._queries, position, self.progress)
        self._looked_s = time.monotonic()


def _new_server_id() -> int:
    """A number that no other replica of the server has, as good as surely."""
    return 1 << 30 | uuid.uuid4().int & (1 << 30) - 1
