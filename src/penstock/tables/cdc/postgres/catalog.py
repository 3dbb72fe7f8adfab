"""What the server has: tables to capture and their keys, the publication, the slot. Checked before a capture starts."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.databases.postgres import psycopg
from penstock.errors import ChangesLostError, ConfigError, SourceUnavailableError
from penstock.tables.cdc.postgres.connections import SlotInUseError, lsn_text, parsed_lsn, translated
from penstock.tables.cdc.source import chosen_tables

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

OLDEST: Final = 110_000
"""The oldest supported version of the server, as libpq counts: 11."""
_POLL_S: Final = 0.05
_LONG_S: Final = 5.0
"""After this long, whoever waits for transactions is told which."""
_RELEASE_S: Final = 10.0
"""For this long, a slot may have a reader that was told to end."""
_LOWER: Final = (1 << 32) - 1
_HALF: Final = 1 << 31

_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname, c.relpersistence, c.relreplident, c.relispartition,
       CASE WHEN c.relkind = 'p' THEN NULL ELSE c.reltuples::bigint END,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'), c.relkind = 'p'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
ORDER BY 2, 3"""
_KEYS: Final = """
SELECT i.indrelid, i.indisprimary, i.indisreplident, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = ANY(%s) AND (i.indisprimary OR i.indisreplident) AND k.place <= i.indnkeyatts
GROUP BY 1, 2, 3"""
_COLUMNS: Final = """
SELECT attrelid, attname::text, atttypid, format_type(atttypid, atttypmod)
FROM pg_attribute
WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped{stored}
ORDER BY attrelid, attnum"""
_PUBLICATION: Final = """
SELECT oid, puballtables, pubinsert AND pubupdate AND pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s"""
_ENTRIES: Final = """
SELECT r.prrelid, r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s"""
_PRESENT: Final = """
SELECT c.oid, n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s) OR n.nspname || '.' || c.relname = ANY(%s)"""
_SLOT: Final = """
SELECT plugin, database, active_pid, restart_lsn::text, confirmed_flush_lsn::text{status}
FROM pg_replication_slots WHERE slot_name = %s"""


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    name: str
    type_oid: int
    type_name: str


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table that is captured."""

    oid: int
    schema: str
    name: str
    key: tuple[str, ...]
    columns: tuple[ColumnInfo, ...]
    """The columns of the publication, without generated ones, which logical replication does not send."""
    rows: int | None
    """About how many it has."""
    row_filter: str | None = None
    """The publication's WHERE."""
    is_partitioned: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql_name(self) -> str:
        """For SELECT and for publications: without tables that inherit from it, but with partitions."""
        quoted: str = psycopg.sql.Identifier(self.schema, self.name).as_string(None)
        return quoted if self.is_partitioned else f"ONLY {quoted}"


@dataclass(frozen=True, slots=True)
class SlotInfo:
    active_pid: int | None
    restart_lsn: int
    confirmed_lsn: int
    status: str
    """reserved, extended, unreserved or lost; "" before PostgreSQL 13."""


def check_server(connection: Connection, where: str) -> None:
    """Raise ConfigError unless the server is set up for logical replication."""
    version = connection.info.server_version
    if version < OLDEST:
        raise ConfigError(f"{where} is PostgreSQL {version // 10_000}: capturing needs {OLDEST // 10_000} or newer")
    (level,) = connection.execute("SHOW wal_level").fetchone() or ("",)
    if level != "logical":
        raise ConfigError(
            f"{where} has wal_level = {level}: run ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL"
        )
    (in_recovery,) = connection.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
    if in_recovery:
        raise ConfigError(f"{where} is a standby: capture from its primary")


def find_tables(connection: Connection, patterns: Sequence[str]) -> list[TableInfo]:
    """The tables that the patterns name. Raises ConfigError for one that cannot be captured, with the remedy."""
    rows = connection.execute(_TABLES).fetchall()
    by_name = {f"{row[1]}.{row[2]}": row for row in rows}
    for pattern in patterns:
        if by_name.get(pattern, [None] * 6)[5]:
            raise ConfigError(f"table {pattern} is a partition: capture the partitioned table that it belongs to")
    names = chosen_tables(patterns, [name for name, row in by_name.items() if not row[5]], "public")
    chosen = [by_name[name] for name in names]
    oids = [row[0] for row in chosen]
    keys = _keys(connection, oids)
    columns = _columns(connection, oids)
    found = []
    for oid, schema, name, persistence, identity, _, count, is_readable, is_partitioned in chosen:
        full = f"{schema}.{name}"
        if persistence != "p":
            raise ConfigError(f"table {full} is unlogged or temporary, so it has no log of changes: leave it out")
        if not is_readable:
            raise ConfigError(f"table {full} cannot be read by this user: GRANT SELECT ON {full} TO <this user>")
        if identity == "n":
            raise ConfigError(f"table {full} logs no keys: ALTER TABLE {full} REPLICA IDENTITY DEFAULT")
        primary, by_identity = keys.get(oid, (None, None))
        key = by_identity if identity == "i" else primary
        if not key:
            raise ConfigError(
                f"table {full} has no primary key, which the records of its topic need: ALTER TABLE {full} ADD PRIMARY "
                f"KEY (...), or ALTER TABLE {full} REPLICA IDENTITY USING INDEX a unique index on columns that are NOT "
                "NULL, or leave the table out"
            )
        rows_known = None if count is None or count < 0 else count
        found.append(TableInfo(oid, schema, name, key, columns[oid], rows_known, is_partitioned=is_partitioned))
    return found


def _keys(connection: Connection, oids: list[int]) -> dict[int, tuple[tuple[str, ...] | None, tuple[str, ...] | None]]:
    """The primary key and the key of the replica identity, by table."""
    found: dict[int, tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = {}
    for oid, is_primary, is_identity, names in connection.execute(_KEYS, (oids,)):
        primary, identity = found.get(oid, (None, None))
        found[oid] = (tuple(names) if is_primary else primary, tuple(names) if is_identity else identity)
    return found


def _columns(connection: Connection, oids: list[int]) -> dict[int, tuple[ColumnInfo, ...]]:
    stored = " AND attgenerated = ''" if connection.info.server_version >= 120_000 else ""
    found: dict[int, tuple[ColumnInfo, ...]] = dict.fromkeys(oids, ())
    for oid, name, type_oid, type_name in connection.execute(_COLUMNS.format(stored=stored).encode(), (oids,)):
        found[oid] += (ColumnInfo(name, type_oid, type_name),)
    return found


class Publication:
    """The publication of a capture: created, extended if it is the capture's own, or only checked."""

    def __init__(self, name: str, *, is_own: bool) -> None:
        self.name = name
        self._is_own = is_own
        """Whether the capture created it: it has the capture's default name."""

    def exists(self, connection: Connection) -> bool:
        return connection.execute(_PUBLICATION, (self.name,)).fetchone() is not None

    def missing(self, connection: Connection, tables: Sequence[TableInfo]) -> list[TableInfo]:
        """Those of the tables that it does not have."""
        there = set(
            connection.execute(
                "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (self.name,)
            )
        )
        return [table for table in tables if (table.schema, table.name) not in there]

    def entries(self, connection: Connection) -> dict[int, int]:
        """The number of each table's entry, by the table's oid. A table that is removed and added has a new entry."""
        return dict(connection.execute(_ENTRIES, (self.name,)).fetchall())

    def provide(self, connection: Connection, tables: Sequence[TableInfo], where: str) -> None:
        """Make sure that it has these tables."""
        wanted = ", ".join(table.sql_name for table in tables)
        row = connection.execute(_PUBLICATION, (self.name,)).fetchone()
        if row is None:
            root = " WITH (publish_via_partition_root = true)" if connection.info.server_version >= 130_000 else ""
            self._change(connection, f'CREATE PUBLICATION "{self.name}" FOR TABLE {wanted}{root}', where)
            return
        _, _, has_changes, has_truncates = row
        if not has_changes or not has_truncates:
            raise ConfigError(
                f'publication {self.name!r} leaves out some changes: ALTER PUBLICATION "{self.name}" SET (publish = '
                "'insert, update, delete, truncate')"
            )
        missing = self.missing(connection, tables)
        if not missing:
            return
        command = f'ALTER PUBLICATION "{self.name}" ADD TABLE {", ".join(table.sql_name for table in missing)}'
        if not self._is_own:
            names = ", ".join(table.full_name for table in missing)
            raise ConfigError(f"publication {self.name!r} does not have {names}: {command}")
        self._change(connection, command, where)

    def narrowed(self, connection: Connection, tables: Sequence[TableInfo]) -> list[TableInfo]:
        """The tables with only the columns and rows that the publication has."""
        if connection.info.server_version < 150_000:
            return list(tables)
        query = (
            "SELECT schemaname, tablename, attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = %s"
        )
        limits: Mapping[str, tuple[list[str], str | None]] = {
            f"{schema}.{name}": (names, row_filter)
            for schema, name, names, row_filter in connection.execute(query, (self.name,))
        }
        found = []
        for table in tables:
            names, row_filter = limits[table.full_name]
            columns = tuple(column for column in table.columns if column.name in names)
            without = set(table.key) - set(names)
            if without:
                raise ConfigError(
                    f"publication {self.name!r} leaves out the key column {min(without)!r} of {table.full_name}: add it"
                )
            found.append(dataclasses.replace(table, columns=columns, row_filter=row_filter))
        return found

    def _change(self, connection: Connection, command: str, where: str) -> None:
        try:
            connection.execute(command.encode())
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation) as error:
            # The server finishes what a capture asked for that was killed since.
            raise SourceUnavailableError(
                f"{where}: publication {self.name!r} was changed at the same time: {' '.join(str(error).split())}"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"{where}: this user may not publish these tables ({' '.join(str(error).split())}): let their owner "
                f"run {command}"
            ) from error


class TableChangedError(SourceUnavailableError):
    """A captured table is another one now, or was not published for a while: set up again, the capture reads it."""


def check_tables(connection: Connection, tables: Sequence[TableInfo], publication: Publication) -> None:
    """Raise TableChangedError, or ConfigError for a renamed table, unless the tables are what they were."""
    missing = publication.missing(connection, tables)  # first: what was renamed since is not taken for removed
    names = present_names(connection, [each.oid for each in tables], [each.full_name for each in tables])
    there = set(names.values())
    for table in tables:
        now = names.get(table.oid)
        if now == table.full_name:
            continue
        if table.full_name in there:
            raise TableChangedError(f"table {table.full_name} was created again: all its rows are read")
        if now is not None:
            raise renamed(table.full_name, now)
        raise TableChangedError(f"table {table.full_name} was dropped")
    for table in missing:
        raise TableChangedError(f"table {table.full_name} was removed from publication {publication.name!r}")


def present_names(connection: Connection, oids: Sequence[int], names: Sequence[str] = ()) -> dict[int, str]:
    """The names of the tables with these oids or names that exist, by oid."""
    return dict(connection.execute(_PRESENT, (list(oids), list(names))).fetchall())


def renamed(before: str, now: str) -> ConfigError:
    return ConfigError(
        f"table {before} is captured, and was renamed to {now}: rename it back, and nothing is lost; or capture it "
        f"into a topic of its own, with a new snapshot, by --tables {now} in place of {before} (where a pattern "
        "matches both: with --snapshot again, once)"
    )


def wait_for_running_transactions(connection: Connection, stopping: Any) -> None:
    """Wait until every transaction that runs now has ended.

    A transaction that wrote before a table was published is decoded without that table, however late it commits: the
    snapshot must see it.
    """
    (now,) = connection.execute("SELECT txid_current()").fetchone() or (0,)
    begun_s, is_told = time.monotonic(), False
    while not stopping.is_set():
        (oldest,) = connection.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())").fetchone() or (0,)
        if oldest >= now:
            return
        if not is_told and time.monotonic() - begun_s > _LONG_S:
            is_told = True
            logger.warning("%s", oldest_transaction(connection, "the snapshot of a table"))
        time.sleep(_POLL_S)


def hides(snapshot: str, transactions: Iterable[int]) -> bool:
    """Whether a query does not see one of these transactions; `snapshot` is that of txid_current_snapshot().

    The log has the lower 32 bits of a transaction's number.
    """
    _, end_text, open_text = snapshot.split(":")
    end = int(end_text)
    are_open = {int(each) & _LOWER for each in open_text.split(",") if each}
    return any(each in are_open or (each - end) & _LOWER < _HALF for each in transactions)


def oldest_transaction(connection: Connection, what: str = "the replication slot") -> str:
    """What a slot that is being created waits for, or a table that was just published."""
    row = connection.execute(
        "SELECT pid, usename, xact_start::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
        "AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
    ).fetchone()
    blamed = "" if row is None else f": the oldest is of process {row[0]} (user {row[1]}), open since {row[2]}"
    return f"{what} waits for the transactions that are open now to end{blamed}"


def current_lsn(connection: Connection) -> int:
    """Where the server's log ends."""
    (lsn,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("0/0",)
    return parsed_lsn(lsn)


def find_slot(connection: Connection, name: str, where: str) -> SlotInfo | None:
    """Raises ConfigError if the slot of this name cannot be used."""
    status = ", wal_status" if connection.info.server_version >= 130_000 else ", ''"
    row = connection.execute(_SLOT.format(status=status).encode(), (name,)).fetchone()
    if row is None:
        return None
    plugin, database, active_pid, restart_lsn, confirmed_lsn, wal_status = row
    (own,) = connection.execute("SELECT current_database()").fetchone() or ("",)
    if plugin not in ("pgoutput", "") or database != own:  # none at first, while a slot is created
        raise ConfigError(
            f"{where} has a replication slot {name!r} with the plugin {plugin} in database {database!r}, which is not "
            "this capture's: choose another --slot"
        )
    restart = 0 if restart_lsn is None else parsed_lsn(restart_lsn)
    confirmed = 0 if confirmed_lsn is None else parsed_lsn(confirmed_lsn)
    return SlotInfo(active_pid, restart, confirmed, wal_status or "")


def check_slot(slot: SlotInfo | None, name: str, position: int, where: str) -> SlotInfo:
    """Raise ChangesLostError unless the slot still has every change after the position."""
    remedy = (
        "changes since then are lost. Take a new snapshot of all tables with --snapshot again; to prevent it, raise "
        "max_slot_wal_keep_size and alert on `penstock cdc status`"
    )
    if slot is None:
        raise ChangesLostError(
            f"{where} no longer has the replication slot {name!r}, which was read up to {lsn_text(position)}: {remedy}"
        )
    if slot.status == "lost":
        raise ChangesLostError(
            f"{where} has removed the log that the replication slot {name!r} needs (max_slot_wal_keep_size was "
            f"exceeded) after {lsn_text(position)}: {remedy}"
        )
    if slot.confirmed_lsn > position:
        raise ChangesLostError(
            f"the replication slot {name!r} of {where} is at {lsn_text(slot.confirmed_lsn)}, after the last captured "
            f"change at {lsn_text(position)}: something else has read from it, or the stream was restored from an "
            f"older copy; {remedy}"
        )
    return slot


def drop_slot(connection: Connection, name: str, where: str) -> None:
    """Drop the slot if it exists; its reader, if there is one, loses it.

    The server itself drops a slot that is not complete when the connection that creates it ends, such as that of a
    capture that was killed.
    """
    deadline_s = time.monotonic() + _RELEASE_S
    while (slot := find_slot(connection, name, where)) is not None:
        with translated(where):
            release_slot(connection, slot)
            try:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            except psycopg.errors.UndefinedObject:
                continue
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() > deadline_s:
                    raise SlotInUseError(f"{where}: {' '.join(str(error).split())}") from error
                time.sleep(_POLL_S)


def release_slot(connection: Connection, slot: SlotInfo, timeout_s: float = _RELEASE_S) -> None:
    """End the connection that reads from the slot: it is of an earlier capture with this name, which is fenced."""
    if slot.active_pid is None:
        return
    connection.execute("SELECT pg_terminate_backend(%s)", (slot.active_pid,))
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        row = connection.execute("SELECT 1 FROM pg_replication_slots WHERE active_pid = %s", (slot.active_pid,))
        if row.fetchone() is None:
            return
        time.sleep(_POLL_S)
