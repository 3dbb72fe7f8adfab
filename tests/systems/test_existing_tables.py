"""Existing tables pass the suite of streams. Penstock only reads them: another client creates them and inserts rows.

Their ids begin at 2: a read from 1 begins with the first row there is, whatever was deleted.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import BrokerUnavailableError, ConfigError, TopicExistsError, UnknownTopicError
from penstock.model import NewRecord, Pointer, Receipt, check_topic_name
from penstock.streams.connecting import open_backend
from penstock.streams.sql.existing_tables import ExistingStream, ExistingTopic
from penstock.streams.sql.postgres_pool import LONGEST_PAUSE_S
from penstock.testing import TcpProxy, conformance
from tests import system_table
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.system("PostgreSQL outbox"), pytest.mark.xdist_group("postgres tables")]

ADDRESS, DATABASE = "PENSTOCK_OUTBOX_ADDRESS", "PENSTOCK_OUTBOX_DATABASE"
COLUMNS = "id_column=id&key_column=k&payload_column=v&timestamp_column=t&poll_interval_s=0.02"

Insert = Callable[[str, Sequence[NewRecord]], list[int]]
"""Inserts rows into a table in one transaction, and gives their ids."""


def time_of(record: NewRecord) -> int:
    return time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms


class WrittenTopic(ExistingTopic):
    """An existing table to which another client appends."""

    insert: Insert

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        self._check_open()
        receipts = [Receipt(self.topic) for _ in records]
        if not records:
            return receipts
        wrong = next((record for record in records if record.partition), None)
        if wrong is not None:
            raise UnknownTopicError(f"table {self.topic!r} has no partition {wrong.partition}")
        for receipt, pointer in zip(receipts, self.insert(self.topic, records), strict=True):
            receipt.settle(0, pointer)
        return receipts


class WrittenTables(ExistingStream):
    """Existing tables, which another client creates, fills and drops."""

    def __init__(self, tables: ExistingStream, execute: Callable[[str], None], create: str, insert: Insert) -> None:
        self.__dict__.update(tables.__dict__)
        self._execute, self._create, self._insert = execute, create, insert

    def open_topic(self, topic: str) -> WrittenTopic:
        self._check_open()
        check_topic_name(topic)
        opened = WrittenTopic(topic, self._rows, self._wakeups, self._poll_interval_s, self._settings)
        opened.insert = self._insert
        return opened

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._check_open()
        check_topic_name(topic)
        if partitions not in (None, 1):
            raise ConfigError(f"partitions={partitions}: a table has one")
        if topic in self.topics():
            raise TopicExistsError(f"there is a table {topic!r}")
        self._execute(self._create.format(table=topic))

    def delete_topic(self, topic: str) -> None:
        if topic not in self.topics():
            raise UnknownTopicError(f"there is no table {topic!r}")
        self._execute(f'DROP TABLE "{topic}"')


class Outage:
    """A server and the proxy in front of it. Rows are inserted past the proxy, by a program beside the server."""

    def __init__(self, server: PostgresServer, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.server = server

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()


_running: list[Outage] = []


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="module")
def behind() -> Iterator[Outage]:
    with PostgresServer() as server, TcpProxy(server.port) as proxy:
        _running.append(Outage(server, proxy))
        yield _running[-1]
        _running.pop()


def execute_in_postgres(statement: str) -> None:
    try:
        with psycopg.connect(os.environ[DATABASE], connect_timeout=10) as connection:
            connection.execute(statement.encode())
    except psycopg.OperationalError as error:
        raise BrokerUnavailableError(str(error)) from error


class PostgresInserts:
    """A program that keeps its connection, and makes a new one after an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    def __call__(self, table: str, records: Sequence[NewRecord]) -> list[int]:
        sql = f'INSERT INTO "{table}" (k, v, t) VALUES (%s, %s, %s) RETURNING id'
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(os.environ[DATABASE], connect_timeout=10)
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    cursor.executemany(
                        sql.encode(), [(each.key, each.value, time_of(each)) for each in records], returning=True
                    )
                    ids = [int(cursor.fetchone()[0])]  # type: ignore[index]
                    while cursor.nextset():  # ends: with the last row
                        ids.append(int(cursor.fetchone()[0]))  # type: ignore[index]
                    return ids
            except psycopg.errors.UndefinedTable as error:
                raise UnknownTopicError(str(error)) from error
            except psycopg.OperationalError as error:
                self._connection = None
                raise BrokerUnavailableError(str(error)) from error


def open_postgres() -> WrittenTables:
    url = f"postgresql://penstock@{os.environ[ADDRESS]}/postgres?request_timeout_s=3&{COLUMNS}"
    tables = open_backend(url, {})
    assert isinstance(tables, ExistingStream)
    system_table.met("PostgreSQL outbox", "PostgreSQL, existing tables", tables.features)
    create = (
        'CREATE TABLE "{table}" (id bigint GENERATED BY DEFAULT AS IDENTITY (START WITH 2) PRIMARY KEY, k bytea, '
        "v bytea, t bigint)"
    )
    return WrittenTables(tables, execute_in_postgres, create, PostgresInserts())


def delete_in_postgres(tables: WrittenTables, topic: str, partition: int, before: Pointer) -> None:
    execute_in_postgres(f'DELETE FROM "{topic}" WHERE id < {before}')


class TestPostgres(
    conformance.stream(  # type: ignore[misc]
        open_postgres, expire=delete_in_postgres, outage=outage, longest_backoff_s=LONGEST_PAUSE_S
    )
):
    @pytest.fixture(autouse=True)
    def _server(self, behind: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(ADDRESS, behind.proxy.address)
        monkeypatch.setenv(DATABASE, behind.server.url)


class SqliteProgram:
    """Another program that uses the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            connection.executescript(statement)

    def insert(self, table: str, records: Sequence[NewRecord]) -> list[int]:
        sql = f'INSERT INTO "{table}" (k, v, t) VALUES (?, ?, ?) RETURNING id'
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
                return [
                    int(connection.execute(sql, (each.key, each.value, time_of(each))).fetchone()[0])
                    for each in records
                ]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise UnknownTopicError(str(error)) from error
            raise


def open_sqlite(folder: Path) -> WrittenTables:
    path = folder / "outbox.db"
    program = SqliteProgram(path)
    program.execute("PRAGMA journal_mode=WAL")
    tables = open_backend(f"sqlite:{path}?{COLUMNS}", {})
    assert isinstance(tables, ExistingStream)
    create = (
        'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY AUTOINCREMENT, k BLOB, v BLOB, t INTEGER);'
        "INSERT INTO sqlite_sequence VALUES ('{table}', 1)"
    )
    return WrittenTables(tables, program.execute, create, program.insert)


def delete_in_sqlite(tables: WrittenTables, topic: str, partition: int, before: Pointer) -> None:
    tables._execute(f'DELETE FROM "{topic}" WHERE id < {before}')


TestSqlite = conformance.stream(open_sqlite, expire=delete_in_sqlite)
