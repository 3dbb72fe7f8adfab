"""Dead letters in a table of a PostgreSQL database."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock.abc import Clock
from penstock.databases.postgres import PostgresConnection, PostgresPool, make_tables, psycopg
from penstock.dead_letters.holding import running_error
from penstock.dead_letters.rows import TABLE, SqlDeadLetters, schema
from penstock.errors import StoreUnavailableError

# A lock for one table, not the database: several schemas may have a table of this name.
_KEY: Final = f"hashtext('penstock_redrive'), '{TABLE}'::regclass::oid::integer"
_TRY_LOCK: Final = f"SELECT pg_try_advisory_lock({_KEY})"
_HOLDER: Final = f"""
SELECT activity.application_name, extract(epoch FROM activity.backend_start) * 1000
FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.granted
AND (locks.classid::integer, locks.objid::integer) = ({_KEY})
AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LONGEST_NAME: Final = 63


class PostgresHold:
    """An advisory lock, held by its own connection: the server releases it when the connection ends, however it ends.

    The connection must go to the server itself, or through a pool with session pooling.
    """

    def __init__(self, pool: PostgresPool[PostgresConnection], holder: str) -> None:
        self._settings = {**pool.settings, "application_name": _name(holder)}
        self._what = f"the dead letters in {pool.where}"
        self._connection = self._locked()

    def check(self) -> None:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._connection.close()
            self._connection = self._locked()  # the lock ended with the connection; it may still be free

    def release(self) -> None:
        self._connection.close()

    def _locked(self) -> PostgresConnection:
        try:
            connection = PostgresConnection.connect(**self._settings)
            try:
                row = connection.execute(_TRY_LOCK).fetchone()
                if row is not None and row[0]:
                    return connection
                other = connection.execute(_HOLDER).fetchone()
            except BaseException:
                connection.close()
                raise
            connection.close()
        except psycopg.Error as error:
            raise StoreUnavailableError(f"{self._what} could not be held for a redrive: {error}") from error
        raise running_error(
            self._what, "" if other is None else str(other[0]), None if other is None else int(other[1])
        )


def _name(holder: str) -> str:
    """A name that PostgreSQL accepts for a connection; it shows other characters as question marks."""
    return holder.encode("ascii", "replace").decode()[:_LONGEST_NAME]


MAX_CONNECTIONS: Final = 4
SCHEMA: Final = schema("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "BIGINT", "BYTEA")
_LOCK_PUTS: Final = "SELECT pg_advisory_xact_lock(hashtext('penstock_dead_letters'))"
_LOCK_ROWS: Final = f"SELECT place FROM {TABLE} WHERE id = ANY(%(ids)s) ORDER BY place FOR UPDATE"


class PostgresDeadLetters(SqlDeadLetters):
    """`abc.DeadLetters` in PostgreSQL, in the table `penstock_dead_letters`, which is created if missing.

    Puts wait for each other, so that letters appear in the order of their places and a reader who pages through them
    misses none; everything else runs concurrently.
    """

    _mark = "%s"
    _among = "{column} = ANY({parameter})"
    _contains = "position({parameter} in {column}) > 0"

    def __init__(self, url: str) -> None:
        self._pool: PostgresPool[PostgresConnection] = PostgresPool(url, SCHEMA.what, size=MAX_CONNECTIONS)
        try:
            make_tables(self._pool, SCHEMA)
        except BaseException:
            self._pool.close()
            raise

    def hold(self, holder: str, wait_s: float, clock: Clock) -> PostgresHold:
        """See `holding.Holdable`."""
        return PostgresHold(self._pool, holder)

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        with self._pool.transaction() as connection, connection.cursor() as cursor:
            yield cursor

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._pool.execute(self._sql(sql), parameters)

    def _list(self, values: Collection[str]) -> list[str]:
        return list(values)

    def _sql(self, sql: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", sql)

    def _lock(self, cursor: Any, parameters: Mapping[str, Any], *, to_put: bool = False) -> None:
        if to_put:
            cursor.execute(_LOCK_PUTS)
        cursor.execute(_LOCK_ROWS, parameters)  # all in one order, or two of them could deadlock
