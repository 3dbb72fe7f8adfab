"""Holding the letters of a PostgreSQL database by a lock that lasts as long as a connection."""

from __future__ import annotations

from typing import Any, Final

from penstock.consuming.dead_letters.holding import running_error
from penstock.consuming.dead_letters.rows import TABLE
from penstock.errors import StoreUnavailableError

# Of one table, not of the database: schemas may have a table of this name each.
_KEY: Final = f"hashtext('penstock_redrive'), '{TABLE}'::regclass::oid::integer"
_LOCK: Final = f"SELECT pg_try_advisory_lock({_KEY})"
_HOLDER: Final = f"""
SELECT activity.application_name, extract(epoch FROM activity.backend_start) * 1000
FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.granted
AND (locks.classid::integer, locks.objid::integer) = ({_KEY})
AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LONGEST_NAME: Final = 63


class PostgresHold:
    """An advisory lock, held by a connection of its own: the server lets go of it when that ends, however it does.

    The connection must be one to the server, or by a pool that lends whole sessions.
    """

    def __init__(self, address: str, where: str, holder: str) -> None:
        import psycopg

        self._psycopg = psycopg
        self._address = psycopg.conninfo.make_conninfo(address, application_name=_name(holder))
        self._where = where
        self._connection = self._locked()

    def check(self) -> None:
        try:
            self._connection.execute("SELECT 1")
        except self._psycopg.Error:
            self._connection.close()
            self._connection = self._locked()  # it ended with the connection; perhaps nobody else has come

    def release(self) -> None:
        self._connection.close()

    def _locked(self) -> Any:
        try:
            connection = self._psycopg.connect(self._address, autocommit=True)
            try:
                row = connection.execute(_LOCK).fetchone()
                if row is not None and row[0]:
                    return connection
                other = connection.execute(_HOLDER).fetchone()
            except BaseException:
                connection.close()
                raise
            connection.close()
        except self._psycopg.Error as error:
            raise StoreUnavailableError(
                f"the dead letters in PostgreSQL at {self._where} could not be held for a redrive: {error}"
            ) from error
        raise running_error(
            f"the dead letters in PostgreSQL at {self._where}",
            "" if other is None else str(other[0]),
            None if other is None else int(other[1]),
        )


def _name(holder: str) -> str:
    """A name that PostgreSQL takes for a connection; it shows other characters as question marks."""
    return holder.encode("ascii", "replace").decode()[:_LONGEST_NAME]
