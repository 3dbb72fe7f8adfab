"""Projections: tables of a database that follow the events, exactly-once, and are built again beside the old ones."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import ConfigError
from penstock.tables.events import EventStore, Projection, StoredEvent, projections
from tests.postgres import shared_postgres
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import wait_a_while, wait_until
from tests.tables.events.bank import Account, Deposited

EVENTS = 300
Query = Callable[[str], list[Any]]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A stream for each test: the group of a projection keeps its checkpoints in one database."""
    with Penstock(tmp_path / "broker") as server:
        url = f"kafka://{server.bootstrap}"
        with EventStore(url, "accounts", Account, partitions=2) as store:
            for number in range(5):
                store.append(f"a{number}", [Deposited(1)] * (EVENTS // 5), expected_version=0)
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'bank.db'}" if request.param == "sqlite" else shared_postgres().fresh_database()


def query(database: str, sql: str) -> list[Any]:
    if database.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:"))) as opened:
            return opened.execute(sql).fetchall()
    with psycopg.connect(database) as connection:
        return connection.execute(sql.encode()).fetchall()


def balances(store: EventStore[Account], database: str, version: int = 1, factor: int = 1) -> Projection:
    tables = {"balances": "id text PRIMARY KEY, cents bigint NOT NULL, events bigint NOT NULL"}
    projection = Projection(store, "balances", database, tables=tables, version=version)
    place = "?" if database.startswith("sqlite:") else "%s"

    @projection.on(Deposited)
    def deposited(connection: Any, stored: StoredEvent) -> None:
        table = projection.table("balances")
        connection.execute(
            f"INSERT INTO {table} VALUES ({place}, {place}, 1) ON CONFLICT (id) DO UPDATE SET "
            f"cents = {table}.cents + excluded.cents, events = {table}.events + 1",
            (stored.id, stored.event.cents * factor),
        )

    return projection


def test_a_new_version_is_built_beside_the_old_one_and_switched_at_the_end(url: str, database: str) -> None:
    with EventStore(url, "accounts", Account) as store:
        old = balances(store, database)
        old.build()
        expected = [(f"a{number}", EVENTS // 5, EVENTS // 5) for number in range(5)]
        assert query(database, "SELECT * FROM balances ORDER BY id") == expected
        assert old.shown_version() == 1

        new = balances(store, database, version=2, factor=100)
        with pytest.raises(ConfigError, match=r"version 1 .* is in use"):
            new.drop(1)
        new.build()
        assert query(database, "SELECT id, cents FROM balances ORDER BY id")[0] == ("a0", 100 * EVENTS // 5)
        old.build()  # an old program that is still deployed neither fails nor switches back
        assert old.shown_version() == 2
        new.drop(1)
        assert query(database, "SELECT count(*) FROM balances") == [(5,)]
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            query(database, "SELECT * FROM balances_v1")


def test_a_running_projection_follows_new_events(url: str, tmp_path: Path) -> None:
    database = f"sqlite:{tmp_path / 'bank.db'}"
    with EventStore(url, "accounts", Account) as store:
        projection = balances(store, database)
        thread = threading.Thread(target=projection.run)
        thread.start()
        try:
            wait_until((tmp_path / "bank.db").exists, "the database is there")
            wait_until(lambda: projection.shown_version() == 1, "the view is there")
            id = f"new-{os.getpid()}"
            store.append(id, [Deposited(7)], expected_version=0)
            sql = f"SELECT cents FROM balances WHERE id = '{id}'"
            wait_until(lambda: query(database, sql) == [(7,)], "the new event is there")
        finally:
            projection.stop()
            thread.join()


def test_a_projection_that_is_killed_counts_each_event_once(url: str, tmp_path: Path) -> None:
    database = f"sqlite:{tmp_path / 'bank.db'}"
    chance = random.Random(seed_of())
    begun: list[str] = []
    for _ in range(times(3, soak=20)):
        command = [sys.executable, "-m", "tests.tables.events.test_projections", url, database]
        with subprocess.Popen([*command, str(chance.randint(1, 60))], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            begun.append(process.stdout.readline())
            wait_a_while(chance.uniform(0.0, 0.1))
            process.send_signal(signal.SIGKILL)
    assert begun[0] == "begun\n", "it was killed while it worked"
    with EventStore(url, "accounts", Account) as store:
        balances(store, database).build()
        events = {id: store.load(id).version for id in store.ids()}
    assert dict(query(database, "SELECT id, events FROM balances")) == events


def test_projections_that_cannot_work_are_refused(url: str) -> None:
    with EventStore(url, "accounts", Account) as store:
        for arguments, problem in (
            (("balances", "redis://localhost"), "not a database for a projection"),
            (("Bal-ances", "sqlite:./x.db"), "characters a-z"),
        ):
            with pytest.raises(ConfigError, match=problem):
                Projection(store, *arguments, tables={"t": "id int"})
        with pytest.raises(ConfigError, match="no functions"):
            Projection(store, "balances", "sqlite:./x.db", tables={"t": "id int"}).build()


def build_to_be_killed(url: str, database: str, count: int) -> None:
    """Build, a few events in a transaction, and say so after so many events."""
    projections._BATCH = 5  # type: ignore[misc]
    with EventStore(url, "accounts", Account) as store:
        projection = balances(store, database)
        deposited = projection._functions[Deposited]
        left = iter(range(count - 1, -1, -1))

        def watched(connection: Any, stored: StoredEvent) -> None:
            deposited(connection, stored)
            if next(left, None) == 0:
                print("begun", flush=True)

        projection._functions[Deposited] = watched
        projection.build()


if __name__ == "__main__":
    build_to_be_killed(sys.argv[1], sys.argv[2], int(sys.argv[3]))
