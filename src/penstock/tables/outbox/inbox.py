"""`Inbox`: which events a consumer has handled, in the database of its effects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.databases import Schema
from penstock.databases.sqlite import SqliteDatabase
from penstock.errors import ConfigError, MissingExtraError, UrlError
from penstock.model import Record
from penstock.streams.schemes import scheme_of
from penstock.streams.url import without_password
from penstock.tables.outbox.connections import application_connection
from penstock.tables.outbox.storage import POSTGRES_SCHEMES, sqlite_path

SCHEMA: Final = Schema(
    "handled events of the inbox",
    1,
    "penstock_inbox_schema",
    (
        """CREATE TABLE penstock_inbox (
            consumer text NOT NULL, event text NOT NULL, at_ms bigint NOT NULL, PRIMARY KEY (consumer, event))""",
        "CREATE INDEX penstock_inbox_at ON penstock_inbox (consumer, at_ms)",
    ),
)
_ADD: Final = "INSERT INTO penstock_inbox (consumer, event, at_ms) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_FORGET: Final = "DELETE FROM penstock_inbox WHERE consumer = %s AND at_ms <= %s"


class Inbox:
    """Remembers events in the table `penstock_inbox` of the database at `url`, which it creates.

    `consumer` names who handles them: two consumers of one database each handle every event.
    """

    def __init__(self, url: str, consumer: str) -> None:
        if not consumer:
            raise ConfigError("consumer must be a name, such as 'billing'")
        self.consumer = consumer
        self.url = without_password(url)
        scheme = scheme_of(url)
        if scheme in POSTGRES_SCHEMES:
            _make_postgres(url)
        elif scheme == "sqlite":
            SqliteDatabase(sqlite_path(url), SCHEMA, synchronous="FULL").close()
        else:
            raise UrlError(f"{self.url!r} cannot have an inbox: give postgresql://... or sqlite:FILE")

    @contextlib.contextmanager
    def transaction(self, connection: Any, event: str | Record) -> Iterator[bool]:
        """A transaction of the application's own connection; yields whether the event is new.

        The event counts as handled if and only if the transaction commits. `event` is an id that the event carries, or
        a record, whose place in its topic is its id. `connection` is as for `Outbox.transaction`.
        """
        with application_connection(connection).block():
            yield self.once(connection, event)

    def once(self, connection: Any, event: str | Record) -> bool:
        """Note the event in the transaction that the connection is in. False if it was noted before.

        Another transaction that has noted it and is still open is waited for.
        """
        found = application_connection(connection)
        if not found.is_in_transaction():
            raise ConfigError("the connection is not in a transaction: use `with inbox.transaction(connection, event)`")
        id = f"{event.topic}/{event.partition}/{event.pointer}" if isinstance(event, Record) else event
        return found.execute(_ADD, (self.consumer, id, round(time.time() * 1000))) == 1

    def forget(self, connection: Any, older_than_s: float) -> int:
        """Forget events that are too old to be delivered again. Returns how many."""
        if older_than_s < 0:
            raise ConfigError(f"older_than_s={older_than_s!r} must not be negative")
        found = application_connection(connection)
        with found.block():
            return found.execute(_FORGET, (self.consumer, round((time.time() - older_than_s) * 1000)))


def _make_postgres(url: str) -> None:
    try:
        from penstock.databases.postgres import PostgresPool, make_tables
    except ImportError as error:
        raise MissingExtraError("PostgreSQL", "postgres") from error
    pool: PostgresPool[Any] = PostgresPool(url, SCHEMA.what, size=1)
    try:
        make_tables(pool, SCHEMA)
    finally:
        pool.close()
