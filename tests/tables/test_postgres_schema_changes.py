"""A captured table of PostgreSQL changes under a running capture, and another database of its server is busy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.errors import ConfigError, UnsupportedTypeError
from tests.servers import Penstock
from tests.tables.captured import (
    confirmed_lsn,
    current_lsn,
    fresh_database,
    materialised,
    records_of,
    wait_until,
)
from tests.tables.test_postgres_capture import running, topic_of

KEY_MOVED = "ALTER TABLE users DROP CONSTRAINT users_pkey, ADD PRIMARY KEY (name)"
KEY_DROPPED = "ALTER TABLE users REPLICA IDENTITY FULL; ALTER TABLE users DROP COLUMN id"
TYPE_ADDED = "ALTER TABLE users ADD COLUMN price money"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL)")
        connection.execute("INSERT INTO users VALUES (1, 'Ada')")
        yield connection


@pytest.mark.parametrize(
    ("change", "kind", "message", "repair"),
    [
        (KEY_MOVED, ConfigError, r"key of table public\.users changed from \(id\) to \(name\).*--snapshot again", None),
        (
            KEY_DROPPED,
            ConfigError,
            r"public\.users has lost its key column 'id'.*primary key.*--snapshot again",
            "ALTER TABLE users ADD COLUMN id serial PRIMARY KEY",
        ),
        (
            TYPE_ADDED,
            UnsupportedTypeError,
            r"column 'price' of table public\.users has the type money.*--snapshot again",
            "ALTER TABLE users ALTER price TYPE numeric",
        ),
    ],
    ids=["key moved", "key dropped", "type added"],
)  # fmt: skip
def test_a_change_of_the_schema_that_cannot_be_captured_ends_the_capture_before_the_rows_after_it(
    url: str,
    stream: str,
    database: psycopg.Connection[Any],
    change: str,
    kind: type[ConfigError],
    message: str,
    repair: str | None,
) -> None:
    name = topic_of(url, "users").partition(".")[0]
    with running(url, stream, "users", name=name) as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO users VALUES (2, 'Grace')")
        database.execute(change.encode())
        end = current_lsn(database)
        columns, values = ("name", "'Alan'") if change == KEY_DROPPED else ("id, name", "3, 'Alan'")
        database.execute(f"INSERT INTO users ({columns}) VALUES ({values})".encode())
        error = capture.wait_for_end()
    assert isinstance(error, kind)
    assert re.search(message, str(error))
    assert _names(stream, url) == ["Ada", "Grace"]
    assert confirmed_lsn(database, f"penstock_{name}") <= end
    if repair is not None:
        database.execute(repair.encode())
        with running(url, stream, "users", name=name) as capture:  # the row is in the log as it was
            error = capture.wait_for_end()
        assert isinstance(error, ConfigError)
        assert "--snapshot again" in str(error)
        assert _names(stream, url) == ["Ada", "Grace"]
        assert confirmed_lsn(database, f"penstock_{name}") <= end
    with running(url, stream, "users", name=name, snapshot="again") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO users (id, name) VALUES (9, 'Edsger')")
        capture.wait_for(database)
    table = materialised(stream, topic_of(url, "users"))
    assert sorted(row["name"] for row in table.rows.values()) == ["Ada", "Alan", "Edsger", "Grace"]


def _names(stream: str, url: str) -> list[str]:
    """Those in the topic, in its order."""
    values = [json.loads(each.value or b"null") for each in records_of(stream, topic_of(url, "users"))]
    return [value["after"]["name"] for value in values]


def test_a_quiet_database_beside_a_busy_one_lets_the_server_remove_its_log(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    with fresh_database() as other, psycopg.connect(other, autocommit=True) as busy:
        busy.execute("CREATE TABLE busy (body text)")
        with running(url, stream, "users", name="quiet") as capture:
            capture.wait_for(database)
            before = confirmed_lsn(database, "penstock_quiet")
            for _ in range(5):
                busy.execute("INSERT INTO busy SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
                capture.wait_for(busy)
            assert confirmed_lsn(database, "penstock_quiet") > before + 1_000_000
            assert capture.capture.progress.changes == 0
            kept = _kept_from(database)
            wait_until(lambda: _kept_from(database) > kept, "the server keeps less")
        with running(url, stream, "users", name="quiet") as capture:
            database.execute("INSERT INTO users VALUES (2, 'Grace')")
            capture.wait_for(database)
    assert _names(stream, url) == ["Ada", "Grace"]


def _kept_from(database: psycopg.Connection[Any]) -> int:
    """The place from which the server keeps its log; snapshots of its state let it move."""
    database.execute("CHECKPOINT")
    row = database.execute(
        "SELECT pg_wal_lsn_diff(restart_lsn, '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
        ("penstock_quiet",),
    ).fetchone()
    assert row is not None
    return int(row[0])
