"""The changes of a slot as batches of records.

A position is the LSN after the last transaction that is stored whole, the LSN of the commit of the next one, and how
many of its changes are stored: a large transaction is stored in several batches. PostgreSQL sends a transaction again,
with the same changes in the same order, until the LSN after it is confirmed; what is stored already is skipped.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.databases.postgres import psycopg
from penstock.errors import ConfigError, PenstockError, SourceUnavailableError
from penstock.tables.cdc.postgres import pgoutput
from penstock.tables.cdc.postgres.catalog import ColumnInfo
from penstock.tables.cdc.postgres.connections import ReplicationConnection, keepalive, lsn_text, wal_data
from penstock.tables.cdc.postgres.pgoutput import UNCHANGED, Relation, Unchanged, Values
from penstock.tables.cdc.postgres.snapshot import rows_by_key
from penstock.tables.cdc.postgres.values import Converter
from penstock.tables.cdc.records import UNAVAILABLE, Moment, Row, TableRecords
from penstock.tables.cdc.source import POSITION, CaptureProgress, SourceBatch

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.25
_LONGEST_BATCH_S: Final = 0.1
"""While changes keep coming, a batch ends at the first commit after this long."""
_LARGEST_BATCH_BYTES: Final = 16 * 1024 * 1024
LOOK_S: Final = 10.0
"""How often a capture looks after its slot and its tables."""
_STATUS_S: Final = 10.0
"""How often the server is told that this side is alive. Its wal_sender_timeout is 60 s by default."""
_ANY_LSN: Final = 1 << 64
_UNAVAILABLE_JSON: Final = msgspec.json.encode(UNAVAILABLE)
_RECENT_BYTES: Final = 32 * 1024 * 1024
_REFRESH_PAUSE_S: Final = 0.02
_MOST_STORED: Final = 100_000
_ENTRY_BYTES: Final = 100
"""What Python needs besides the bytes themselves, about."""
_LARGE_ROW_BYTES: Final = 1_900
"""PostgreSQL stores values apart (TOAST) in rows of more than about 2,000 bytes."""
_LARGE_VALUE_BYTES: Final = 32
_WAL_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_HEADER: Final = 25
"""Bytes before the message of pgoutput."""


class Position(msgspec.Struct, frozen=True):
    lsn: int
    """Every transaction that ends before is stored whole."""
    commit: int = 0
    """The LSN of the commit of the transaction of which some changes are stored; 0 if there is none."""
    index: int = 0
    """How many of its changes are stored."""


@dataclass(slots=True)
class CapturedRelation:
    """A table as pgoutput describes it at this point of the log."""

    relation: Relation
    records: TableRecords
    converters: Sequence[Converter]
    key_indexes: tuple[int, ...]
    key_columns: tuple[ColumnInfo, ...]
    source_sql: str
    state: tuple[str, bytes] | None
    """The key and value to save, if its columns have changed."""

    def fragments(self, values: Values) -> list[bytes]:
        """JSON of each value; of one that was not sent, a placeholder."""
        return [
            b"null" if value is None else _UNAVAILABLE_JSON if isinstance(value, Unchanged) else convert(value)
            for value, convert in zip(values, self.converters, strict=True)
        ]

    def known_key(self, values: Values) -> bytes:
        return self.records.key_bytes(self.fragments(values))


class RecentValues:
    """Large values of rows that were changed lately, so that an update that leaves them alone has them exactly."""

    def __init__(self, limit_bytes: int = _RECENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rows: OrderedDict[tuple[int, bytes], dict[str, bytes]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def fill(self, table: CapturedRelation, key: bytes, values: Values) -> None:
        """Put what is known in place of what was not sent."""
        known = self._rows.get((table.relation.oid, key), {})
        for index, value in enumerate(values):
            if isinstance(value, Unchanged):
                values[index] = known.get(table.relation.columns[index].name, UNCHANGED)

    def keep(self, table: CapturedRelation, key: bytes, values: Values, size_bytes: int) -> None:
        """Remember a row as it is now. Only rows of this size have values that PostgreSQL stores apart."""
        self.forget(table, key)
        if size_bytes < _LARGE_ROW_BYTES:
            return
        kept = {
            column.name: value
            for column, value in zip(table.relation.columns, values, strict=True)
            if isinstance(value, bytes) and len(value) >= _LARGE_VALUE_BYTES
        }
        if not kept:
            return
        self._rows[table.relation.oid, key] = kept
        self._size_bytes += _size(key, kept)
        while self._size_bytes > self._limit_bytes:
            self._drop(next(iter(self._rows)))

    def forget(self, table: CapturedRelation, key: bytes) -> None:
        if (table.relation.oid, key) in self._rows:
            self._drop((table.relation.oid, key))

    def forget_table(self, oid: int) -> None:
        for place in [each for each in self._rows if each[0] == oid]:
            self._drop(place)

    def _drop(self, place: tuple[int, bytes]) -> None:
        self._size_bytes -= _size(place[1], self._rows.pop(place))


def _size(key: bytes, kept: dict[str, bytes]) -> int:
    return _ENTRY_BYTES + len(key) + sum(_ENTRY_BYTES + len(value) for value in kept.values())


Describe = Callable[[Relation], CapturedRelation | None]
"""None: the table is not captured."""


@dataclass(slots=True)
class _IncompleteRecord:
    """A record that waits for values that the database did not send."""

    place: int
    """The index of the record in the batch."""
    table: CapturedRelation
    values: Values
    write: Callable[[list[bytes]], Row]

    @property
    def key_texts(self) -> tuple[str, ...]:
        return tuple((self.values[index] or b"").decode() for index in self.table.key_indexes)  # type: ignore[union-attr]


class ChangeReader:
    """Reads the slot. `describe` is asked about each table, and again when its columns change."""

    def __init__(
        self,
        replication: ReplicationConnection,
        queries: psycopg.Connection[Any],
        describe: Describe,
        position: Position,
        progress: CaptureProgress,
        *,
        batch_rows: int,
        heartbeat_s: float,
        look: Callable[[int], None],
        refresh: Callable[[Collection[int], int], Iterator[SourceBatch]],
    ) -> None:
        """`look` is called now and then, with the LSN before which everything is stored. `refresh` yields some rows of
        a table that is read again, if there is one, with the effects of these transactions; none: not now."""
        self._replication = replication
        self._queries = queries
        self._describe = describe
        self._position = position
        self._progress = progress
        self._batch_rows = batch_rows
        self._heartbeat_s = heartbeat_s
        self._look = look
        self._refresh = refresh
        self._refresh_due_s = 0.0
        self._stored: deque[int] = deque(maxlen=_MOST_STORED)
        """Transactions that are stored, and that may not be visible yet to a query: see `refresh`."""
        self._looked_s = 0.0
        self._relations: dict[int, CapturedRelation | None] = {}
        self._recent = RecentValues()
        self._new_batch()
        self._done = position.lsn
        self._commit, self._time_ms, self._transaction, self._index = 0, 0, 0, 0
        self._is_inside = False
        """Whether a transaction has begun and not ended."""
        self._skipped = 0
        self._sent_lsn = 0
        self._saved_s = time.monotonic()
        self._is_asked = False

    def batches(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        """Until `stopping`: then what is read is still stored."""
        replication = self._replication
        while not stopping.is_set():
            if not self._is_inside and not self._records and time.monotonic() >= self._refresh_due_s:
                yield from self._refresh_some()
            message = replication.receive()
            if message is None:
                if time.monotonic() - self._looked_s >= LOOK_S:
                    self._look_now()
                if self._records and not self._is_inside:
                    yield from self._flush()
                elif self._is_heartbeat_due():
                    yield from self._heartbeat()
                else:
                    replication.keep_alive(_STATUS_S)
                    replication.wait(_WAIT_S)
                    yield SourceBatch()
                continue
            if message[0] == _WAL_DATA:
                lsn, replication.wal_end = wal_data(message)
                data = message[_HEADER:]
                if data[0] == pgoutput.RELATION:
                    yield from self._take_relation(data)
                else:
                    self._take(data, lsn)
                if self._is_full():
                    yield from self._flush()
            elif message[0] == _KEEPALIVE:
                replication.wal_end, is_asked = keepalive(message)
                self._is_asked |= is_asked
                if not self._is_inside:
                    self._sent_lsn = replication.wal_end
                if is_asked:
                    replication.confirm(replication.confirmed)
            self._progress.lag_bytes = max(0, replication.wal_end - replication.confirmed)
        if self._records and not self._is_inside:
            yield from self._flush()

    def _refresh_some(self) -> Iterator[SourceBatch]:
        """Everything that was read is stored: so is what follows, after it. Changes get as much time as this takes."""
        begun_s = time.monotonic()
        for batch in self._refresh(self._stored, self._position.lsn):
            yield batch
            self._stored.clear()  # what one query sees, later ones see
        now_s = time.monotonic()
        self._refresh_due_s = now_s + max(_REFRESH_PAUSE_S, now_s - begun_s)

    def _is_full(self) -> bool:
        if len(self._records) >= self._batch_rows or self._size_bytes >= _LARGEST_BATCH_BYTES:
            return True
        return not self._is_inside and bool(self._records) and time.monotonic() - self._begun_s > _LONGEST_BATCH_S

    def _is_heartbeat_due(self) -> bool:
        """Whether the database's log has moved on without a change for us, and the server should know."""
        if self._records or self._is_inside or max(self._sent_lsn, self._done) <= self._position.lsn:
            return False
        return self._is_asked or time.monotonic() - self._saved_s >= self._heartbeat_s

    def _heartbeat(self) -> Iterator[SourceBatch]:
        self._done = max(self._sent_lsn, self._done)
        yield from self._flush()

    def _flush(self) -> Iterator[SourceBatch]:
        """Hand out the batch; once it is stored, confirm it."""
        self._fill()
        position = Position(self._done, self._commit, self._index) if self._is_inside else Position(self._done)
        self._state[POSITION] = msgspec.json.encode(position)
        changes, transactions, time_ms = self._changes, self._transactions, self._time_ms
        yield SourceBatch(self._records, self._state)  # type: ignore[arg-type]  # every place is filled
        self._position = position
        self._replication.confirm(position.lsn)
        progress = self._progress
        progress.changes += changes
        progress.transactions += transactions
        progress.position = lsn_text(position.lsn)
        progress.lag_bytes = max(0, self._replication.wal_end - position.lsn)
        if changes:
            progress.last_change_ms = time_ms
        self._saved_s = time.monotonic()
        self._is_asked = False
        self._new_batch()
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._look_now()

    def _look_now(self) -> None:
        self._looked_s = time.monotonic()
        self._look(self._position.lsn)

    def _new_batch(self) -> None:
        self._records: list[Row | None] = []
        self._state: dict[str, bytes | None] = {}
        self._unfilled: list[_IncompleteRecord] = []
        self._size_bytes = 0
        self._changes = 0
        self._transactions = 0
        self._begun_s = time.monotonic()

    def _take(self, data: bytes, lsn: int) -> None:
        kind = data[0]
        if kind == pgoutput.BEGIN:
            self._commit, self._time_ms, self._transaction = pgoutput.parse_begin(data)
            self._index = 0
            self._is_inside = True
            saved = self._position
            if self._commit < saved.lsn:  # the server need not send it again, but may
                self._skipped = 1 << 62
            else:
                self._skipped = saved.index if self._commit == saved.commit else 0
        elif kind == pgoutput.COMMIT:
            self._done = max(self._done, pgoutput.parse_commit(data))
            self._sent_lsn = max(self._sent_lsn, self._done)
            self._is_inside = False
            self._stored.append(self._transaction)
            self._transactions += self._index > self._skipped
        elif kind in pgoutput.IGNORED:
            return
        else:
            self._index += 1
            if self._index > self._skipped:
                self._take_change(kind, data, lsn)

    def _take_relation(self, data: bytes) -> Iterator[SourceBatch]:
        relation = pgoutput.parse_relation(data)
        try:
            described = self._describe(relation)
        except PenstockError:
            if self._records:  # the table as it was before is stored to its end
                yield from self._flush()
            raise
        self._relations[relation.oid] = described
        if described is not None and described.state is not None:
            name, value = described.state
            self._state[name] = value

    def _take_change(self, kind: int, data: bytes, lsn: int) -> None:
        if not self._records:
            self._begun_s = time.monotonic()
        self._size_bytes += len(data)
        at = Moment(
            self._time_ms,
            lsn,
            b'"txId":%d,"commitLsn":%d,"index":%d' % (self._transaction, self._commit, self._index - 1),
        )
        if kind == pgoutput.TRUNCATE:
            for oid in pgoutput.parse_truncate(data):
                truncated = self._relations.get(oid)
                if truncated is not None:
                    self._records.append(truncated.records.truncated(at))
                    self._recent.forget_table(oid)
                    self._changes += 1
            return
        table = self._relations.get(pgoutput.relation_of(data))
        if table is None:
            return
        self._changes += 1
        if kind == pgoutput.INSERT:
            values = pgoutput.parse_insert(data)
            record = table.records.created(table.fragments(values), at)
            self._records.append(record)
            self._recent.keep(table, record[2] or b"", values, len(data))
        elif kind == pgoutput.UPDATE:
            self._update(table, data, at)
        elif kind == pgoutput.DELETE:
            old, is_whole = pgoutput.parse_delete(data)
            self._delete(table, old, is_whole, at)
        else:
            raise ConfigError(f"pgoutput sent a message of the unknown kind {chr(kind)!r}: upgrade Penstock")

    def _update(self, table: CapturedRelation, data: bytes, at: Moment) -> None:
        old, is_whole, new = pgoutput.parse_update(data)
        if old is not None:
            known = range(len(new)) if is_whole else table.key_indexes
            for index in known:
                if isinstance(new[index], Unchanged):
                    new[index] = old[index]
        records = table.records
        key = old_key = table.known_key(new)
        if old is not None:
            old_key = table.known_key(old)
        self._recent.fill(table, old_key, new)
        self._recent.keep(table, key, new, max(len(data), sum(len(each) for each in new if isinstance(each, bytes))))
        if old is not None and any(old[index] != new[index] for index in table.key_indexes):
            self._delete(table, old, is_whole, at)

            def write(row: list[bytes]) -> Row:
                return records.created(row, at)
        else:
            before = records.row_json(table.fragments(old)) if is_whole and old is not None else None

            def write(row: list[bytes]) -> Row:
                return records.updated(row, before, at)

        if UNCHANGED in new:
            self._unfilled.append(_IncompleteRecord(len(self._records), table, new, write))
            self._records.append(None)
        else:
            self._records.append(write(table.fragments(new)))

    def _delete(self, table: CapturedRelation, old: Values, is_whole: bool, at: Moment) -> None:
        row = table.fragments(old)
        self._recent.forget(table, table.records.key_bytes(row))
        before = table.records.row_json(row) if is_whole else table.records.key_json(row)
        self._records += table.records.deleted(table.records.key_bytes(row), before, at)

    def _fill(self) -> None:
        """Look up large values that updates did not change, in the rows as they are now.

        A value may be newer than its change: then that later change follows in the log. If the row is gone, so does
        its delete, and the placeholder stays.
        """
        by_table: dict[int, list[_IncompleteRecord]] = {}
        for each in self._unfilled:
            by_table.setdefault(id(each.table), []).append(each)
        for waiting in by_table.values():
            found = self._look_up(waiting)
            for each in waiting:
                known = found.get(each.key_texts, {})
                values = [
                    known.get(column.name, value) if isinstance(value, Unchanged) else value
                    for column, value in zip(each.table.relation.columns, each.values, strict=True)
                ]
                self._records[each.place] = each.write(each.table.fragments(values))

    def _look_up(self, waiting: list[_IncompleteRecord]) -> dict[tuple[str, ...], dict[str, bytes | None]]:
        table = waiting[0].table
        places = sorted({index for each in waiting for index, value in enumerate(each.values) if value is UNCHANGED})
        names = [table.relation.columns[index].name for index in places]
        wanted = dict.fromkeys(each.key_texts for each in waiting)
        width = len(table.key_columns)
        try:
            with contextlib.closing(
                rows_by_key(self._queries, table.source_sql, names, table.key_columns, wanted)  # type: ignore[type-var]
            ) as rows:
                return {
                    tuple((text or b"").decode() for text in row[:width]): dict(zip(names, row[width:], strict=True))
                    for row in rows
                }
        except psycopg.errors.UndefinedColumn:  # a later change of the schema
            return {}
        except psycopg.errors.UndefinedTable:
            self._look(_ANY_LSN)  # raises if it was renamed: the values are there
            return {}
        except psycopg.OperationalError as error:
            raise SourceUnavailableError(f"values could not be looked up: {error}") from error
