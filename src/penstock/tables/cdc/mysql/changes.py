"""The changes of a binlog as batches of records.

A position is the end of the last transaction that is stored whole, and in the next one the row event of which some rows
are stored, and how many: a large transaction, and even a large event, is stored in several batches. After a restart the
server sends the next transaction again; what is stored already is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Final, Protocol

import msgspec

from penstock.errors import ChangesLostError, ConfigError, SourceUnavailableError
from penstock.tables.cdc.mysql import binlog
from penstock.tables.cdc.mysql.binlog import Header, Query, RowsEvent, TableMap
from penstock.tables.cdc.mysql.charsets import Charsets
from penstock.tables.cdc.mysql.connections import BinlogConnection
from penstock.tables.cdc.mysql.statements import Effect, Statement, effects
from penstock.tables.cdc.mysql.tables import CapturedTable
from penstock.tables.cdc.records import Fragments, Moment, Row, TableRecords
from penstock.tables.cdc.source import POSITION, CaptureProgress, SourceBatch

_WAIT_S: Final = 0.25
_LONGEST_BATCH_S: Final = 0.1
"""While changes keep coming, a batch ends at the first commit after this long."""
_LARGEST_BATCH_BYTES: Final = 16 * 1024 * 1024
LOOK_S: Final = 10.0
_REFRESH_PAUSE_S: Final = 0.02
_HIGHEST: Final = 1 << 32
"""The protocol has 32 bits for a position: a file is larger only if its last transactions are."""
_MOST_TABLES: Final = 1_000
_FIRST: Final = 4
"""Where the first event of a file begins."""

Place = tuple[int, int]
"""The number of a file, and a position in it."""


class BinlogPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    file: str
    pos: int
    """Every transaction that ends before is stored whole."""
    event: int = 0
    """Where the last event begins of which rows are stored, after `pos`; 0 if there is none."""
    skipped_rows: int = 0
    """How many rows of it are stored. All rows of the events before it are."""
    gtid: str = ""
    """The id of the last transaction, for people."""
    made_s: int = 0
    """When the file was begun: another file with the same name is not the one that was read."""
    at_s: int = 0
    """When the last transaction before it was committed, or a later time before the next; 0: unknown."""

    @property
    def shown(self) -> str:
        return f"{self.file}:{self.pos}"

    @property
    def place(self) -> Place:
        return file_number(self.file), self.pos


def file_number(name: str) -> int:
    """The number that the name of a file of the binlog ends with."""
    digits = name.rpartition(".")[2]
    return int(digits) if digits.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Mark:
    """What was in the batch, and which event was the last one, at a point inside it."""

    records: int = 0
    changes: int = 0
    size_bytes: int = 0
    event: int = 0
    row: int = 0

    def after(self, records: int, changes: int) -> Mark | None:
        """The same point once the beginning of the batch is stored; None if it is stored, too."""
        if self.records < records:
            return None
        return Mark(self.records - records, self.changes - changes)


class Tables(Protocol):
    """What the reader asks about tables."""

    def is_captured(self, name: str, place: Place) -> bool:
        """Whether changes of this table at this place are captured."""

    def describe(self, table: TableMap, present: bytes) -> CapturedTable:
        """A table whose rows have these columns. Raises ConfigError if it cannot be captured any more."""

    def named(self, name: str) -> list[str]:
        """The captured tables that a name in a statement means; SCHEMA.* means all of a schema."""

    def records(self, name: str) -> TableRecords: ...

    def altered(self, name: str) -> None:
        """The columns of a table may be others now."""

    def is_mentioned(self, query: Query) -> str | None:
        """A captured table that a statement may change."""


class BinlogReader:
    """Reads the binlog from a position on."""

    def __init__(
        self,
        stream: BinlogConnection,
        tables: Tables,
        position: BinlogPosition,
        progress: CaptureProgress,
        charsets: Charsets,
        *,
        where: str,
        batch_rows: int,
        heartbeat_s: float,
        is_flat: bool,
        look: Callable[[BinlogPosition], None],
        refresh: Callable[[BinlogPosition], Iterator[SourceBatch]],
    ) -> None:
        """`look` is called now and then, to see how long the server keeps the binlog. `refresh` yields some rows of a
        table that is read again; it is given the place up to which everything is stored."""
        self._stream = stream
        self._tables = tables
        self._position = position
        self._progress = progress
        self._charsets = charsets
        self._where = where
        self._batch_rows = batch_rows
        self._heartbeat_s = heartbeat_s
        self._is_flat = is_flat
        self._look = look
        self._refresh = refresh
        self._refresh_due_s = 0.0
        self._is_refreshing = False
        self._looked_s = 0.0
        self._saved_s = time.monotonic()
        self._has_checksums = False
        # Where the reader is.
        self._file, self._end = position.file, position.pos
        self._high = 0
        """What the position has above 32 bits."""
        self._first = position
        self._done = msgspec.structs.replace(position, event=0, skipped_rows=0)
        """The end of the last transaction that was read."""
        self._gtid = position.gtid
        self._time_ms = 0
        self._event, self._row = position.event, position.skipped_rows
        """As in a position."""
        # The tables that the server has described, and the transaction.
        self._maps: dict[int, bytes] = {}
        self._known: dict[tuple[bytes, bytes], CapturedTable] = {}
        self._is_inside = False
        self._is_prepared = False
        """Whether the transaction is only prepared (XA): it may still be rolled back."""
        self._is_partly_stored = False
        self._savepoints: dict[str, Mark | None] = {}
        """None: what was before it is stored, or some of what was after it."""
        self._mark = Mark()
        """Where the transaction began."""
        self._new_batch()

    def batches(self, stopping: Event) -> Iterator[SourceBatch]:
        """Until `stopping`: then what is read is still stored."""
        while not stopping.is_set():
            is_waiting = bool(self._records) and not self._is_inside
            if not (self._records or self._state or self._is_inside) and time.monotonic() >= self._refresh_due_s:
                yield from self._refresh_some()
            wait_s = self._refresh_due_s - time.monotonic() if self._is_refreshing else _WAIT_S
            packet = self._stream.receive(0.001 if is_waiting else min(_WAIT_S, max(0.001, wait_s)))
            if packet is not None:
                yield from self._take(packet)
                if self._is_full():
                    yield from self._flush()
                continue
            if is_waiting or self._is_heartbeat_due():
                yield from self._flush()
            else:
                yield SourceBatch()  # nothing new: the capture can report that it runs
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._look_now()
        if self._records and not self._is_inside:
            yield from self._flush()

    def _refresh_some(self) -> Iterator[SourceBatch]:
        """Everything that was read is stored: so is what follows, after it. Changes get as much time as this takes."""
        begun_s = time.monotonic()
        self._is_refreshing = False
        for batch in self._refresh(BinlogPosition(self._file, self._end)):
            self._is_refreshing = True
            yield batch
        now_s = time.monotonic()
        self._refresh_due_s = now_s + max(_REFRESH_PAUSE_S, now_s - begun_s)

    # Batches

    def _new_batch(self) -> None:
        self._records: list[Row] = []
        self._state: dict[str, bytes | None] = {}
        self._size_bytes = 0
        self._changes = 0
        self._transactions = 0
        self._begun_s = time.monotonic()

    def _is_full(self) -> bool:
        if len(self._records) >= self._batch_rows or self._size_bytes >= _LARGEST_BATCH_BYTES:
            return True
        return not self._is_inside and bool(self._records) and time.monotonic() - self._begun_s > _LONGEST_BATCH_S

    def _is_heartbeat_due(self) -> bool:
        """Whether the binlog has moved on without a change for us."""
        if self._records or self._is_inside or self._reached() == self._position:
            return False
        return time.monotonic() - self._saved_s >= self._heartbeat_s

    def _reached(self) -> BinlogPosition:
        return msgspec.structs.replace(self._done, event=self._event, skipped_rows=self._row)

    def _flush(self) -> Iterator[SourceBatch]:
        """Hand out the batch. When the generator goes on, it is stored.

        Inside a transaction, these are the transactions before it; only if there are none, it is split.
        """
        records, changes, size_bytes = self._records, self._changes, self._size_bytes
        position = self._reached()
        count = len(records)
        if self._is_inside:
            if self._mark.records:
                count, changes, size_bytes = self._mark.records, self._mark.changes, self._mark.size_bytes
                position = msgspec.structs.replace(self._done, event=self._mark.event, skipped_rows=self._mark.row)
            else:
                self._is_partly_stored = True
        rest = records[count:], self._changes - changes, self._size_bytes - size_bytes
        self._savepoints = {name: mark and mark.after(count, changes) for name, mark in self._savepoints.items()}
        self._state[POSITION] = msgspec.json.encode(position)
        transactions, time_ms = self._transactions, self._time_ms
        yield SourceBatch(records[:count], self._state)
        self._position = position
        progress = self._progress
        progress.changes += changes
        progress.transactions += transactions
        progress.position = position.shown
        if changes:
            progress.last_change_ms = time_ms
        self._saved_s = time.monotonic()
        self._new_batch()
        self._records, self._changes, self._size_bytes = rest
        self._mark = Mark(event=self._mark.event, row=self._mark.row)
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._look_now()

    def _look_now(self) -> None:
        self._looked_s = time.monotonic()
        self._look(self._position)

    # Events

    def _take(self, packet: bytes) -> Iterator[SourceBatch]:
        header = binlog.parse_header(packet)
        if header.kind == binlog.FORMAT:
            self._has_checksums = binlog.has_checksums(packet)
            self._check_file(header)
        has_checksum = self._has_checksums
        if header.kind == binlog.ROTATE:  # the server begins with one, before it tells whether events have checksums
            has_checksum = binlog.is_checked(packet)
        elif has_checksum and not binlog.is_checked(packet):
            raise SourceUnavailableError(
                f"an event in the binlog of {self._where} has a wrong checksum ({self._file}, after {self._end}): if "
                "it stays so, check the server's disk, and take a new snapshot with --snapshot again"
            )
        body = packet[binlog.HEADER : -binlog.CHECKSUM] if has_checksum else packet[binlog.HEADER :]
        if header.kind == binlog.ROTATE:
            self._rotate(*binlog.parse_rotate(body))
            return
        is_in_file = header.end != 0 and not header.flags & binlog.ARTIFICIAL
        if not is_in_file or header.kind in (binlog.FORMAT, binlog.HEARTBEAT):
            return
        if header.end + self._high < self._end - _HIGHEST // 2:  # a file of more than 4 GB: the number began again
            self._high += _HIGHEST
        self._end = max(self._end, header.end + self._high)
        self._time_ms = header.time_s * 1000
        if header.kind in binlog.ROWS:
            yield from self._take_rows(header, binlog.parse_rows(body, header.kind))
        else:
            self._take_other(header, body)

    def _take_other(self, header: Header, body: bytes) -> None:
        kind = header.kind
        if kind == binlog.TABLE_MAP:
            self._maps[binlog.table_of(body)] = body[binlog.TABLE_ID :]
        elif kind in (binlog.XID, binlog.XA_PREPARE):
            self._commit()
        elif kind in (binlog.QUERY, binlog.QUERY_COMPRESSED, binlog.LOAD):
            query = binlog.parse_query(body, kind, self._charsets)
            for statement in effects(query):
                self._take_statement(statement, query, self._end - header.size)
            if not self._is_inside:
                self._commit()
        elif kind == binlog.MARIADB_GTID:
            domain, sequence, flags = binlog.parse_mariadb_gtid(body)
            self._gtid = f"{domain}-{header.server_id}-{sequence}"
            if not flags & binlog.STANDALONE:
                self._begin()
                self._is_prepared = bool(flags & binlog.PREPARED_XA)
        elif kind == binlog.GTID:
            self._gtid = binlog.parse_gtid(body)
        elif kind in binlog.BETWEEN and not self._is_inside:
            self._commit()
        elif kind == binlog.INCIDENT:
            raise ChangesLostError(
                f"{self._where} says that changes are missing in its binlog (an incident at {self._file}:{self._end}): "
                "take a new snapshot of all tables with --snapshot again"
            )
        elif kind in binlog.UNREADABLE:
            raise ConfigError(
                f"the binlog of {self._where} has {binlog.UNREADABLE[kind]} at {self._file}:{self._end}, which cannot "
                "be read: turn that off, also in sessions, then take a new snapshot with --snapshot again"
            )

    def _check_file(self, header: Header) -> None:
        """Notice another file with the name of the one that was read: it has other changes."""
        first = self._first
        if self._file != first.file:
            self._done = msgspec.structs.replace(self._done, made_s=header.time_s)
            return
        if first.made_s and first.made_s != header.time_s:
            raise ChangesLostError(
                f"{self._where} has another binlog file {first.file} than the one that was read: it was reset (RESET "
                "MASTER), or this is another server; changes since then are lost. Take a new snapshot of all tables "
                "with --snapshot again"
            )
        self._done = msgspec.structs.replace(self._done, made_s=header.time_s)

    def _rotate(self, file: str, position: int) -> None:
        """Another file follows; the server also says so when it begins to send."""
        if file == self._file:
            return
        if self._is_inside:  # the server crashed while it wrote, and has rolled the transaction back
            self._roll_back(self._mark, is_partly_stored=self._is_partly_stored)
            self._is_inside = False
        self._file, self._end, self._high = file, position, 0
        self._event, self._row = 0, 0
        self._maps.clear()
        self._done = BinlogPosition(file, max(position, _FIRST), gtid=self._gtid, at_s=self._done.at_s)

    # Transactions

    def _begin(self) -> None:
        self._is_inside = True
        self._is_prepared = False
        self._is_partly_stored = False
        self._savepoints.clear()
        self._mark = self._here()

    def _commit(self) -> None:
        self._is_inside = False
        self._transactions += self._changes > self._mark.changes or self._is_partly_stored
        self._is_partly_stored = False
        self._mark = self._here()
        if self._end < _HIGHEST:  # else the server could not be asked for what follows: the last event stands for it
            self._done = msgspec.structs.replace(self._done, pos=self._end, gtid=self._gtid, at_s=self._time_ms // 1000)
            if not self._is_before_first(self._end):
                self._event, self._row = 0, 0

    def _here(self) -> Mark:
        return Mark(len(self._records), self._changes, self._size_bytes, self._event, self._row)

    def _is_before_first(self, place: int) -> bool:
        """Whether events before this place were stored before the start."""
        return self._file == self._first.file and place <= self._first.event

    def _roll_back(self, mark: Mark | None, *, is_partly_stored: bool) -> None:
        if is_partly_stored or mark is None:
            raise ChangesLostError(
                f"{self._where} has logged a transaction that was rolled back (at {self._file}:{self._end}) and had "
                "more changes than one batch, so some are in the topic: take a new snapshot of all tables with "
                "--snapshot again, with a larger --batch-rows"
            )
        del self._records[mark.records :]
        self._changes = mark.changes

    def _take_statement(self, statement: Statement, query: Query, start: int) -> None:
        effect, name = statement.effect, statement.name
        if effect is Effect.BEGIN:
            self._begin()
        elif effect is Effect.XA_START:
            self._begin()
            self._is_prepared = True
        elif effect is Effect.COMMIT:
            self._is_inside = False
        elif effect is Effect.ROLLBACK:
            self._roll_back(self._mark, is_partly_stored=self._is_partly_stored)
            self._is_inside = False
        elif effect is Effect.SAVEPOINT:
            self._savepoints[name.casefold()] = self._here()
        elif effect is Effect.ROLLBACK_TO:
            self._roll_back(self._savepoints.get(name.casefold(), self._mark), is_partly_stored=False)
        elif effect is Effect.DATA:
            table = self._tables.is_mentioned(query)
            if table is not None:
                self._refuse(table, "was changed by a statement that was logged as text (its session's binlog_format)")
        else:
            for table in self._tables.named(name):
                if self._tables.is_captured(table, (file_number(self._file), start)) and not self._is_stored(start):
                    self._take_ddl(effect, table, query, start)

    def _take_ddl(self, effect: Effect, table: str, query: Query, start: int) -> None:
        if effect is Effect.REMOVED:
            self._refuse(table, f"was dropped, replaced or renamed: {query.text[:200]}")
        elif effect is Effect.REWRITTEN:
            self._refuse(table, f"was changed without events for its rows: {query.text[:200]}")
        elif effect is Effect.ALTER:
            self._tables.altered(table)
            self._known.clear()
        elif effect is Effect.TRUNCATE:
            self._records.append(self._tables.records(table).truncated(self._moment(start, 0)))
            self._changes += 1
            self._event, self._row = start, 1

    def _refuse(self, table: str, what: str) -> None:
        raise ConfigError(
            f"table {table} {what} (at {self._file}:{self._end}): start without the table, or start over with "
            "--snapshot again"
        )

    def _is_stored(self, start: int) -> bool:
        """Whether the rows of this event were stored before the start, all of them or some."""
        return self._is_before_first(start)

    # Rows

    def _moment(self, start: int, row: int) -> Moment:
        position = (file_number(self._file) << 32) + start if self._is_flat else start
        members = b'"file":"%b","row":%d,"gtid":"%b"' % (self._file.encode(), row, self._gtid.encode())
        return Moment(self._time_ms, position, members)

    def _take_rows(self, header: Header, rows: RowsEvent) -> Iterator[SourceBatch]:
        described = self._maps.get(rows.table_id)
        start = self._end - header.size
        if described is None:
            if rows.width == 0:  # the event that only says that a statement ended
                return
            raise SourceUnavailableError(f"the binlog of {self._where} has rows of a table that it did not describe")
        name = binlog.table_name(described)
        if not self._tables.is_captured(name, (file_number(self._file), start)):
            return
        skipped = 0
        if self._is_stored(start):
            self._is_partly_stored = True
            if start < self._first.event:
                return
            skipped = self._first.skipped_rows
        if self._is_prepared:
            self._refuse(name, "was changed by an XA transaction, whose rows are logged before it is committed")
        table = self._table(described, rows)
        data, at, end = rows.data, 0, len(rows.data)
        is_update, is_insert = header.kind in binlog.UPDATES, header.kind in binlog.INSERTS
        if not self._records:
            self._begun_s = time.monotonic()
        position = (file_number(self._file) << 32) + start if self._is_flat else start
        first = b'"file":"%b","gtid":"%b","row":' % (self._file.encode(), self._gtid.encode())
        records, time_ms, row = table.records, self._time_ms, 0
        while at < end:
            begin = at
            new, at = table.read(data, at)
            old: Fragments = new
            if is_update:
                new, at = table.read(data, at)
            row += 1
            if row <= skipped:
                continue
            moment = Moment(time_ms, position, first + b"%d" % (row - 1))
            if is_insert:
                self._records.append(records.created(new, moment))
            elif is_update and records.key_bytes(old) == records.key_bytes(new):
                self._records.append(records.updated(new, records.row_json(old), moment))
            else:
                self._records += records.deleted(records.key_bytes(old), records.row_json(old), moment)
                if is_update:
                    self._records.append(records.created(new, moment))
            self._changes += 1
            self._size_bytes += at - begin
            self._event, self._row = start, row
            if len(self._records) >= self._batch_rows or self._size_bytes >= _LARGEST_BATCH_BYTES:
                yield from self._flush()

    def _table(self, described: bytes, rows: RowsEvent) -> CapturedTable:
        key = (described, rows.present)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_TABLES:
                self._known.clear()
            found = self._known[key] = self._tables.describe(
                binlog.parse_table_map(bytes(binlog.TABLE_ID) + described, self._charsets), rows.present
            )
            if found.state is not None:
                name, value = found.state
                self._state[name] = value
        if rows.present_after != rows.present:
            self._refuse(found.name, "was changed by a session with a binlog_row_image that is not FULL")
        return found
