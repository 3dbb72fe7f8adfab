"""The outbox's table as the relay sees it: the oldest events that are committed, and their removal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.databases import Schema
from penstock.databases.sqlite import SqliteDatabase
from penstock.errors import MissingExtraError, UrlError
from penstock.model import Headers
from penstock.streams.schemes import scheme_of
from penstock.streams.url import without_password

POSTGRES_SCHEMES: Final = ("postgresql", "postgres")

# The id is drawn while the application holds the locks of the rows that it changes. So of two events about one row, the
# one of the earlier transaction has the smaller id, and whoever sees the later one sees the earlier one, too.
_TABLE: Final = """CREATE TABLE penstock_outbox (
    id {identity}, topic text NOT NULL, key {binary}, value {binary}, partition integer NOT NULL, partitions integer,
    sent_us bigint NOT NULL, delivered_ms bigint, headers {binary})"""
_INDEX: Final = "CREATE INDEX penstock_outbox_waiting ON penstock_outbox (id) WHERE delivered_ms IS NULL"


def _schema(identity: str, binary: str) -> Schema:
    table = _TABLE.format(identity=identity, binary=binary)
    upgrades = {1: (f"ALTER TABLE penstock_outbox ADD COLUMN headers {binary}",)}
    return Schema("events of the outbox", 2, "penstock_outbox_schema", (table, _INDEX), upgrades=upgrades)


POSTGRES: Final = _schema("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytea")
SQLITE: Final = _schema("INTEGER PRIMARY KEY AUTOINCREMENT", "blob")

_NEXT: Final = """
    SELECT id, sent_us, topic, key, value, partition, partitions, headers FROM (
        SELECT id, sent_us, topic, key, value, partition, partitions, headers,
               sum(coalesce(length(value), 0) + coalesce(length(headers), 0)) OVER (ORDER BY id) AS size_bytes,
               row_number() OVER (ORDER BY id) AS place
        FROM (SELECT * FROM penstock_outbox WHERE delivered_ms IS NULL ORDER BY id LIMIT :rows) AS oldest
    ) AS measured WHERE size_bytes <= :bytes OR place = 1 ORDER BY id"""
_WAITING: Final = "SELECT count(*), min(sent_us) / 1000 FROM penstock_outbox WHERE delivered_ms IS NULL"

Event = tuple[int, int, str, bytes | None, bytes | None, int, int | None, bytes | None]
"""Id, time of sending, topic, key, value, partition, the number of partitions that its topic is declared with, and the
headers."""
EventId = tuple[int, int]
"""Id and time of sending: a database that was restored from a backup gives ids a second time."""


def packed(headers: Headers) -> bytes | None:
    """Headers as a column has them."""
    return msgspec.msgpack.encode(headers) if headers else None


def unpacked(column: bytes | None) -> Headers:
    """The headers of `packed`."""
    return () if column is None else msgspec.msgpack.decode(column, type=tuple[tuple[str, bytes | None], ...])


class OutboxStorage(Protocol):
    """Used by one thread. Raises StoreUnavailableError while the database is away."""

    def oldest(self, rows: int, size_bytes: int) -> Sequence[Event]:
        """Committed events that were not removed, by their id: at least one if there is one."""

    def remove(self, ids: Sequence[EventId], *, keep: bool) -> None:
        """Delete events, or mark them as delivered."""

    def waiting(self) -> tuple[int, int | None]:
        """How many events are committed and not removed, and when the first of them was sent, in milliseconds."""

    def close(self) -> None: ...


def open_outbox_storage(url: str) -> OutboxStorage:
    """Create the table if it is missing."""
    scheme = scheme_of(url)
    if scheme in POSTGRES_SCHEMES:
        return _PostgresStorage(url)
    if scheme == "sqlite":
        return _SqliteStorage(sqlite_path(url))
    raise UrlError(f"{without_password(url)!r} cannot have an outbox: give postgresql://... or sqlite:FILE")


def sqlite_path(url: str) -> str:
    path = url.partition(":")[2]
    if not path or path.startswith("//") or "?" in path:
        raise UrlError(f"{url!r}: write the path of the database right after the colon, as in sqlite:./app.db")
    return str(Path(path).expanduser())


class _PostgresStorage:
    def __init__(self, url: str) -> None:
        try:
            from penstock.databases.postgres import PostgresPool, make_tables
        except ImportError as error:
            raise MissingExtraError("PostgreSQL", "postgres") from error
        self._pool: PostgresPool[Any] = PostgresPool(url, POSTGRES.what, size=1)
        try:
            make_tables(self._pool, POSTGRES)
        except BaseException:
            self._pool.close()
            raise

    def oldest(self, rows: int, size_bytes: int) -> Sequence[Event]:
        sql = _NEXT.replace(":rows", "%(rows)s").replace(":bytes", "%(bytes)s")
        return self._pool.execute(sql, {"rows": rows, "bytes": size_bytes})

    def remove(self, ids: Sequence[EventId], *, keep: bool) -> None:
        values: list[object] = [[id for id, _ in ids], [sent_us for _, sent_us in ids]]
        change = "DELETE FROM penstock_outbox"
        if keep:
            change = "UPDATE penstock_outbox SET delivered_ms = %s"
            values.insert(0, round(time.time() * 1000))
        chosen = "(id, sent_us) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))"
        self._pool.execute(f"{change} WHERE {chosen} RETURNING id", values)

    def waiting(self) -> tuple[int, int | None]:
        count, oldest_ms = self._pool.execute(_WAITING)[0]
        return count, oldest_ms

    def close(self) -> None:
        self._pool.close()


class _SqliteStorage:
    def __init__(self, path: str) -> None:
        self._database: SqliteDatabase[Any] = SqliteDatabase(path, SQLITE, synchronous="FULL")

    def oldest(self, rows: int, size_bytes: int) -> Sequence[Event]:
        return self._database.read(_NEXT, {"rows": rows, "bytes": size_bytes})

    def remove(self, ids: Sequence[EventId], *, keep: bool) -> None:
        with self._database.transaction() as cursor:
            if keep:
                now_ms = round(time.time() * 1000)
                sql = "UPDATE penstock_outbox SET delivered_ms = ? WHERE id = ? AND sent_us = ?"
                cursor.executemany(sql, [(now_ms, *id) for id in ids])
            else:
                cursor.executemany("DELETE FROM penstock_outbox WHERE id = ? AND sent_us = ?", ids)

    def waiting(self) -> tuple[int, int | None]:
        count, oldest_ms = self._database.read(_WAITING)[0]
        return count, oldest_ms

    def close(self) -> None:
        self._database.close()
