"""`Outbox`: events in a table of the application's database, which commit with its rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.serde import Topic, topic_of
from penstock.serde.plain import NewHeaders
from penstock.streams.url import without_password
from penstock.tables.cdc.records import BY_KEY
from penstock.tables.outbox.connections import ApplicationConnection, application_connection
from penstock.tables.outbox.relay import Relay
from penstock.tables.outbox.storage import open_outbox_storage, packed

_ADD: Final = (
    "INSERT INTO penstock_outbox (topic, key, value, partition, partitions, sent_us, headers) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s)"
)


class OutboxTransaction:
    """Sends events inside a transaction. Do not use it after its block."""

    def __init__(self, connection: ApplicationConnection, url: str) -> None:
        self._connection: ApplicationConnection | None = connection
        self._url = url

    def send(
        self,
        topic: str | Topic[Any],
        value: Any,
        key: object = None,
        *,
        headers: NewHeaders = None,
        partition: int | None = None,
    ) -> None:
        """Write an event, which is delivered if and only if the transaction commits."""
        if self._connection is None:
            raise ConfigError("this transaction has ended: send inside its `with` block")
        declared = topic_of(topic)
        record = declared.new_record(value, key, headers, partition=partition)
        values = (
            record.topic,
            record.key,
            record.value,
            BY_KEY if record.partition is None else record.partition,
            declared.partitions,
            time.time_ns() // 1000,
            packed(record.headers),
        )
        try:
            self._connection.execute(_ADD, values)
        except Exception as error:
            text = str(error)
            if "penstock_outbox" in text and ("not exist" in text or "no such table" in text):
                raise ConfigError(
                    f"this connection sees no table penstock_outbox: it must be one to the outbox's own database, "
                    f"{self._url}, with the same search path"
                ) from error
            raise

    def end(self) -> None:
        self._connection = None


class Outbox:
    """Events that commit together with rows of a database: `postgresql://...` or `sqlite:FILE`.

    Creates its table, `penstock_outbox`, in that database. A `relay` delivers what was committed to a stream.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown_url = without_password(url)
        open_outbox_storage(url).close()

    @contextlib.contextmanager
    def transaction(self, connection: Any) -> Iterator[OutboxTransaction]:
        """A transaction of the application's own connection: rows and events commit together, or neither does.

        `connection` is one of psycopg 3 or sqlite3, a SQLAlchemy session or connection, or `django.db.connection`. If
        it is in a transaction already, the block is a part of it, and commits when that one does.
        """
        found = application_connection(connection)
        with found.block():
            transaction = OutboxTransaction(found, self.shown_url)
            try:
                yield transaction
            finally:
                transaction.end()

    def relay(self, stream: Any, **options: Any) -> Relay:
        """What delivers the events to a stream, a URL or an open one. The options are those of `Relay`."""
        return Relay(self.url, stream, **options)
