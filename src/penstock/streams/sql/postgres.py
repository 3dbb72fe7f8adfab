"""Tables of PostgreSQL as topics: `postgresql://user@host/database`. Libpq's parameters, environment variables and
files (`sslmode`, `PGPASSWORD`, `~/.pgpass`, ...) count as usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final
from urllib.parse import unquote

from penstock.abc import Stream
from penstock.databases import Schema
from penstock.databases.postgres import Rows, make_tables, psycopg
from penstock.errors import ConfigError, InvalidTopicError, TopicExistsError
from penstock.model import NewRecord, Pointer
from penstock.streams.adapting.polled_topic import Wakeups
from penstock.streams.backend_url import parse_backend_url, settings_of
from penstock.streams.sql.existing_postgres import PostgresRows, text_bytes
from penstock.streams.sql.existing_tables import LOWEST, ExistingStream
from penstock.streams.sql.postgres_pool import Listener, PostgresSettings, TablePool, quoted
from penstock.streams.sql.row_batch import Row, headers_text
from penstock.streams.sql.topic_tables import TableStream

ID_BITS: Final = 63
ID_MASK: Final = (1 << ID_BITS) - 1
FINAL: Final = "{column} < pg_snapshot_xmin(pg_current_snapshot())"


class TransactionRows(PostgresRows):
    """`RowSource` in the order of transactions. A pointer is the transaction's number, followed by the id.

    The column is `xid8 NOT NULL DEFAULT pg_current_xact_id()`. All transactions before the oldest open one
    (`pg_snapshot_xmin`) have ended, and no later one gets a smaller number. So nothing can appear later before that
    place, in whichever order ids are given: this also holds for programs that draw ids ahead. The price: every
    transaction of the server that has written something, to any table, holds readers up until it ends.
    """

    def __init__(self, pool: TablePool, settings: PostgresSettings, listener: Listener) -> None:
        super().__init__(pool, settings, listener)
        self._transaction = quoted(settings.transaction_column)
        self._place = f"{self._transaction}::text::bigint, {self._id}"
        self._order = f"{self._transaction}, {self._id}"
        self._is_final = FINAL.format(column=self._transaction)

    def final_end(self, table: str, beyond: Pointer) -> Pointer:
        self.check_table(table)
        backwards = f"{self._transaction} DESC, {self._id} DESC"
        found = self._one(table, f"WHERE {self._is_final} ORDER BY {backwards} LIMIT 1", ())
        return LOWEST if found is None else found + 1

    def fetch(self, table: str, start: Pointer, end: Pointer, limit: int) -> list[Row]:
        """Fetch final rows. All of them lie before `end`, so there is no comparison with it."""
        found = self._read(
            table,
            f"{self._tables[table].select} WHERE ({self._order}) >= (%s::text::xid8, %s::bigint) AND {self._is_final} "
            f"ORDER BY {self._order} LIMIT %s",
            (str(max(0, start) >> ID_BITS), max(0, start) & ID_MASK, limit),
        )
        rows: list[Row] = [
            (_packed(transaction, id), text_bytes(key), text_bytes(value), None, time_ms)
            for id, key, value, time_ms, transaction in found
        ]
        return [row for row in rows if row[0] < end]

    def first(self, table: str) -> Pointer | None:
        self._listener.start()
        return self._one(table, f"ORDER BY {self._order} LIMIT 1", ())

    def last_given(self, table: str) -> Pointer | None:
        """The id of the next transaction. A database that was restored elsewhere counts from the beginning."""
        [(found,)] = self._read(table, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(found) << ID_BITS

    def at_time(self, table: str, time_ms: int) -> Pointer | None:
        condition = f"WHERE {self._tables[table].time_ms} >= %s AND {self._is_final} ORDER BY {self._order} LIMIT 1"
        return self._one(table, condition, (time_ms,))

    def _one(self, table: str, rest: str, values: tuple[Any, ...]) -> Pointer | None:
        found = self._read(table, f"SELECT {self._place} FROM {self._tables[table].name} t {rest}", values)
        return _packed(*found[0]) if found else None

    def _extra(self, columns: dict[str, str]) -> str:
        name = self._settings.transaction_column
        if columns[name] != "xid8":
            raise ConfigError(
                f"transaction_column={name!r} is {columns[name]}: it must be xid8, with DEFAULT pg_current_xact_id()"
            )
        return f", {self._transaction}::text::bigint"

    def _sequence(self, table: str, oid: int, full_name: str) -> int | None:
        """None: the order of transactions does not depend on where ids come from."""
        return None

    def _wanted(self) -> list[str]:
        return [*super()._wanted(), self._settings.transaction_column]


class TransactionStream(ExistingStream):
    """Pointers are shown as TRANSACTION/ID."""

    def pointer_text(self, pointer: Pointer) -> str:
        return f"{pointer >> ID_BITS}/{pointer & ID_MASK}"

    def parse_pointer(self, text: str) -> Pointer:
        transaction, _, id = text.partition("/")
        if not transaction.isdecimal() or not id.isdecimal():
            raise ConfigError(f"{text!r} is not a pointer here: write TRANSACTION/ID, as in 7482/31")
        return _packed(int(transaction), int(id))


def _packed(transaction: int, id: int) -> Pointer:
    return (transaction << ID_BITS) + id


PORT: Final = 5432
NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names of tables."""
NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

SCHEMA: Final = Schema(
    what="topics",
    version=1,
    version_table="penstock_topic_schema",
    statements=(
        """CREATE TABLE penstock_topic_partition (
            topic text NOT NULL, partition integer NOT NULL, next_id bigint NOT NULL DEFAULT 0,
            PRIMARY KEY (topic, partition)) WITH (fillfactor = 50)""",
        # Gives rows of other programs their offsets. Ours come with them.
        """CREATE FUNCTION penstock_next_id() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            EXECUTE format('UPDATE %I.penstock_topic_partition SET next_id = next_id + 1
                WHERE topic = $1 AND partition = $2 RETURNING next_id - 1', TG_TABLE_SCHEMA)
                INTO NEW.id USING TG_TABLE_NAME, NEW.partition;
            IF NEW.id IS NULL THEN
                RAISE EXCEPTION 'topic % has no partition %', TG_TABLE_NAME, NEW.partition;
            END IF;
            PERFORM pg_notify('penstock', TG_TABLE_NAME);
            RETURN NEW;
        END $$""",
    ),
)


def open_postgres(url: str, options: Mapping[str, Any]) -> Stream:
    """The stream of a `postgresql:` URL. Nothing is connected yet."""
    ours = {each.name for each in fields(PostgresSettings)}
    place, _, query = url.partition("?")
    parameters = query.split("&")  # libpq's stay as they are: it reads them in a way of its own
    of_stream = "&".join(each for each in parameters if unquote(each.partition("=")[0]) in ours)
    of_libpq = "&".join(each for each in parameters if unquote(each.partition("=")[0]) not in ours)
    settings = settings_of(parse_backend_url(f"{place}?{of_stream}", PORT), PostgresSettings, options)
    address = f"{place}?{of_libpq}" if of_libpq else place
    pool = TablePool(address, settings)
    wakeups = Wakeups()
    listener = Listener(pool, settings.notify_channel, wakeups)
    if settings.id_column:
        by_transaction = bool(settings.transaction_column)
        return (TransactionStream if by_transaction else ExistingStream)(
            url,
            (TransactionRows if by_transaction else PostgresRows)(pool, settings, listener),
            wakeups,
            checkpoint_url=address,
            poll_interval_s=settings.poll_interval_s,
            settings=settings,
        )
    return TableStream(
        url,
        PostgresTopics(pool, settings, listener),
        wakeups,
        checkpoint_url=address,
        poll_interval_s=settings.poll_interval_s,
        max_record_bytes=settings.max_record_bytes,
    )


class PostgresTopics:
    """`TopicTables` in PostgreSQL."""

    def __init__(self, pool: TablePool, settings: PostgresSettings, listener: Listener) -> None:
        self.where = pool.where
        self._pool = pool
        self._channel = settings.notify_channel
        self._listener = listener
        self._has_tables = False

    def check(self) -> None:
        if self._has_tables:
            self._pool.execute("SELECT 1")
        else:
            make_tables(self._pool, SCHEMA)
            self._has_tables = True

    def names(self) -> list[str]:
        return [name for (name,) in self._read("SELECT DISTINCT topic FROM penstock_topic_partition ORDER BY topic")]

    def create(self, topic: str, partitions: int) -> None:
        if len(topic) > NAME_BYTES:
            raise InvalidTopicError(f"{topic!r} is longer than {NAME_BYTES} characters, PostgreSQL's limit for tables")
        self._make_sure()
        table = quoted(topic)
        with self._pool.connection() as connection:
            try:
                with connection.transaction():
                    connection.execute(
                        "INSERT INTO penstock_topic_partition SELECT %s, generate_series(0, %s)",
                        (topic, partitions - 1),
                    )
                    connection.execute(
                        f"""CREATE TABLE {table} (
                            partition integer NOT NULL DEFAULT 0, id bigint NOT NULL, key bytea, value bytea,
                            headers json, timestamp_ms bigint NOT NULL DEFAULT {NOW_MS},
                            PRIMARY KEY (partition, id))""".encode()
                    )
                    connection.execute(
                        f"CREATE TRIGGER penstock_next_id BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.id IS NULL) "
                        "EXECUTE FUNCTION penstock_next_id()".encode()
                    )
            except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable) as error:
                raise TopicExistsError(f"{self.where} already has a table or topic {topic!r}") from error

    def drop(self, topic: str) -> bool:
        self._make_sure()
        with self._pool.connection() as connection, connection.transaction():
            gone = connection.execute("DELETE FROM penstock_topic_partition WHERE topic = %s", (topic,))
            if gone.rowcount:
                connection.execute(f"DROP TABLE IF EXISTS {quoted(topic)}".encode())
            return gone.rowcount > 0

    def partition_count(self, topic: str) -> int:
        [(count,)] = self._read("SELECT count(*) FROM penstock_topic_partition WHERE topic = %s", (topic,))
        return int(count)

    def rows(self, topic: str, partition: int, start: Pointer, limit: int) -> list[Row]:
        sql = f"""SELECT id, key, value, headers::text, timestamp_ms FROM {quoted(topic)}
            WHERE partition = %s AND id >= %s ORDER BY id LIMIT %s"""
        return self._read(sql, (partition, start, limit))

    def fetch(self, topic: str, partition: int, start: Pointer, limit: int) -> tuple[Pointer | None, list[Row]]:
        """One statement, so one snapshot: the rows and the counter belong together."""
        rows = self._read(
            f"""SELECT r.id, r.key, r.value, r.headers::text, r.timestamp_ms, p.next_id
            FROM penstock_topic_partition p LEFT JOIN LATERAL (
                SELECT * FROM {quoted(topic)} t WHERE t.partition = %s AND t.id >= %s ORDER BY t.id LIMIT %s) r ON true
            WHERE p.topic = %s AND p.partition = %s ORDER BY r.id""",
            (partition, max(0, start), limit, topic, partition),
        )
        if not rows:
            return None, []
        if rows[0][0] is None:
            self._listener.start()
            return rows[0][5], []
        return rows[0][5], [row[:5] for row in rows]

    def span(self, topic: str, partition: int) -> tuple[Pointer | None, Pointer] | None:
        rows = self._read(
            f"""SELECT (SELECT min(id) FROM {quoted(topic)} WHERE partition = %s), next_id
            FROM penstock_topic_partition WHERE topic = %s AND partition = %s""",
            (partition, topic, partition),
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def at_time(self, topic: str, partition: int, time_ms: int) -> Pointer | None:
        sql = f"SELECT min(id) FROM {quoted(topic)} WHERE partition = %s AND timestamp_ms >= %s"
        [(found,)] = self._read(sql, (partition, time_ms))
        return None if found is None else int(found)

    def insert(self, topic: str, records: Mapping[int, Sequence[NewRecord]]) -> dict[int, Pointer]:
        """One round trip. Partitions are locked in their order, so that two writers cannot wait for each other."""
        self._make_sure()
        partitions = sorted(records)
        with self._pool.connection() as connection:
            statement = self._insertion(topic)
            if len(partitions) == 1:
                cursors = [connection.execute(statement, self._values(topic, partitions[0], records[partitions[0]]))]
            else:
                with connection.pipeline(), connection.transaction():
                    cursors = [
                        connection.execute(statement, self._values(topic, each, records[each])) for each in partitions
                    ]
            rows = [cursor.fetchone() for cursor in cursors]
        return {partition: row[0] for partition, row in zip(partitions, rows, strict=True) if row is not None}

    def close(self) -> None:
        self._listener.close()
        self._pool.close()

    def _insertion(self, topic: str) -> bytes:
        """Raise the counter, which locks it until the commit, and insert rows with the offsets before it."""
        notice = ", pg_notify(%(channel)s, %(topic)s)" if self._channel else ""
        return f"""
            WITH counter AS (
                UPDATE penstock_topic_partition SET next_id = next_id + %(count)s
                WHERE topic = %(topic)s AND partition = %(partition)s RETURNING next_id - %(count)s AS first),
            inserted AS (
                INSERT INTO {quoted(topic)} (partition, id, key, value, headers, timestamp_ms)
                SELECT %(partition)s, counter.first + r.number - 1, r.key, r.value, r.headers::json,
                    coalesce(r.timestamp_ms, {NOW_MS})
                FROM counter, unnest(%(keys)b::bytea[], %(values)b::bytea[], %(headers)s::text[], %(times)s::bigint[])
                    WITH ORDINALITY AS r(key, value, headers, timestamp_ms, number))
            SELECT first{notice} FROM counter""".encode()

    def _values(self, topic: str, partition: int, records: Sequence[NewRecord]) -> dict[str, Any]:
        return {
            "channel": self._channel,
            "topic": topic,
            "partition": partition,
            "count": len(records),
            "keys": [record.key for record in records],
            "values": [record.value for record in records],
            "headers": [headers_text(record.headers) for record in records],
            "times": [record.timestamp_ms for record in records],
        }

    def _make_sure(self) -> None:
        if not self._has_tables:
            self.check()

    def _read(self, sql: str, values: Any = ()) -> Rows:
        self._make_sure()
        with self._pool.connection() as connection, connection.cursor(binary=True) as cursor:
            cursor.execute(sql.encode(), values)
            return cursor.fetchall()
