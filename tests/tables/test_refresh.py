"""A table is read again on request while it changes: nothing is replaced by something older, and a kill resumes it."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigError
from penstock.streams import connect
from penstock.streams.key_value_topic import KeyValueTopic
from penstock.tables.cdc import request_snapshot, requests
from penstock.tables.cdc.mysql import source as mysql_source
from penstock.tables.cdc.mysql.changes import file_number
from penstock.tables.cdc.postgres.catalog import hides
from tests.mariadb import fresh_database as fresh_mariadb
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import (
    CaptureProcess,
    confirmed_lsn,
    current_lsn,
    fresh_database,
    materialised,
    wait_a_while,
    wait_until,
)
from tests.tables.captured_mysql import Database
from tests.tables.captured_mysql import running as running_mariadb
from tests.tables.test_postgres_capture import running, topic_of

ROWS = 200
FEW = 40
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


class Source(Protocol):
    """A database with the table `items`, of an id and a note."""

    url: str
    topic: str

    def execute(self, sql: str) -> Any: ...

    def rows(self) -> dict[int, str]: ...

    def is_captured(self, stream: str, name: str) -> bool:
        """Whether everything that is committed is in the stream."""


class Postgres:
    def __init__(self, url: str) -> None:
        self.url = url
        self.topic = topic_of(url, "items")
        self._connection = psycopg.connect(url, autocommit=True)

    def execute(self, sql: str) -> Any:
        return self._connection.execute(sql.encode())

    def rows(self) -> dict[int, str]:
        return dict(self._connection.execute("SELECT id, note FROM items").fetchall())

    def is_captured(self, stream: str, name: str) -> bool:
        end = current_lsn(self._connection)
        wait_until(lambda: confirmed_lsn(self._connection, f"penstock_{name}") >= end, "everything is captured")
        return True


class Sqlite:
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:{path}"
        self.topic = f"{path.stem}.main.items"
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")

    def execute(self, sql: str) -> Any:
        return self._connection.execute(sql)

    def rows(self) -> dict[int, str]:
        return dict(self._connection.execute("SELECT id, note FROM items").fetchall())

    def is_captured(self, stream: str, name: str) -> bool:
        (count,) = self.execute(f"SELECT count(*) FROM penstock_changes_{name}").fetchone()
        return int(count) == 0


class Mariadb:
    def __init__(self, url: str) -> None:
        self.url = url
        name = url.rpartition("/")[2]
        self.topic = f"{name}.{name}.items"
        self._database = Database(url)

    def execute(self, sql: str) -> Any:
        conflict, update = "ON CONFLICT (id) DO UPDATE SET note = excluded.note", "ON DUPLICATE KEY UPDATE note = "
        return self._database.run(sql.replace(conflict, f"{update}VALUES(note)"))

    def rows(self) -> dict[int, str]:
        return dict(self._database.run("SELECT id, note FROM items"))

    def is_captured(self, stream: str, name: str) -> bool:
        end = self._database.place()
        return _place(stream, name) >= end


def _place(stream: str, name: str) -> tuple[int, int]:
    with connect(stream) as connection:
        position = json.loads(KeyValueTopic(connection, f"penstock.cdc.{name}").read()["position"])
    return file_number(position["file"]), position["pos"]


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    with contextlib.ExitStack() as closing:
        made: Source
        if request.param == "postgres":
            made = Postgres(closing.enter_context(fresh_database()))
        elif request.param == "mariadb":
            made = Mariadb(closing.enter_context(fresh_mariadb(f"refresh_{next(_numbers)}")))
        else:
            made = Sqlite(tmp_path / f"{tmp_path.name.lower()}.db")
        made.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        values = ", ".join(f"({number}, 'first')" for number in range(ROWS))
        made.execute(f"INSERT INTO items VALUES {values}")
        yield made


class Writer(threading.Thread):
    """Changes rows of the first half at random, until stopped."""

    def __init__(self, execute: Callable[[str], Any], seed: int) -> None:
        super().__init__(daemon=True)
        self._execute = execute
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.written = 0

    def run(self) -> None:
        while not self._stopping.wait(0.001):
            id, kind = self._chance.randrange(ROWS // 2), self._chance.randrange(4)
            if kind == 0:
                self._execute(f"DELETE FROM items WHERE id = {id}")
            else:
                self._execute(
                    f"INSERT INTO items VALUES ({id}, 'w{self.written}') "
                    "ON CONFLICT (id) DO UPDATE SET note = excluded.note"
                )
            self.written += 1

    def finish(self) -> None:
        self._stopping.set()
        self.join()


def test_a_killed_capture_reads_a_table_again_to_its_end_while_it_changes(source: Source, stream: str) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    name = f"again_{seed % 1000}_{source.topic.partition('.')[0]}"[:50]
    capture = CaptureProcess(
        source.url, stream, "-t", "items", "--name", name, "--snapshot-rows", "3", "--heartbeat", "200ms", "--quiet"
    )
    writer = Writer(source.execute, seed)
    capture.start()
    try:
        wait_until(lambda: _is_read(capture, stream, name), "the first snapshot is done")
        writer.start()
        is_done = _requested(stream, name)
        kills = times(2, soak=30)
        for _ in range(kills):
            before = _refreshed_rows(stream, name)
            wait_until(
                lambda before=before: is_done() or _refreshed_rows(stream, name) > before,  # type: ignore[misc]
                "the capture reads on",
            )
            wait_a_while(chance.uniform(0.0, 0.1))
            capture.kill()
            capture.start()
        wait_until(lambda: _checked(capture, is_done), "the table is read again")
        writer.finish()
        wait_until(lambda: source.is_captured(stream, name), "everything is captured")
        capture.terminate()
    finally:
        writer.finish() if writer.is_alive() else None
        if capture.popen is not None and capture.popen.poll() is None:
            capture.kill()
    table = materialised(stream, source.topic)
    assert {row["id"]: row["note"] for row in table.rows.values()} == source.rows()
    read = collections.Counter(json.loads(key)["id"] for key in table.snapshot_keys)
    assert {read[id] for id in range(ROWS // 2, ROWS)} == {2}, "each row that stays is read once by each snapshot"
    print(f"{writer.written} changes, {kills} kills, seed {seed}")


def _checked(capture: CaptureProcess, is_done: Callable[[], bool]) -> bool:
    capture.check_running()
    return is_done()


def _is_read(capture: CaptureProcess, stream: str, name: str) -> bool:
    capture.check_running()
    return _table(stream, name).get("snapshot") == "done"


def _table(stream: str, name: str) -> dict[str, Any]:
    """The saved state of the table."""
    with connect(stream) as connection:
        found = KeyValueTopic(connection, f"penstock.cdc.{name}").read()
    return next((json.loads(value) for key, value in found.items() if key.startswith("table/")), {})


def _refreshed_rows(stream: str, name: str) -> int:
    refresh = _table(stream, name).get("refresh")
    return 0 if refresh is None else int(refresh["rows"])


def _requested(stream: str, name: str) -> Callable[[], bool]:
    connection = connect(stream)
    return request_snapshot(connection, name, "items")


def test_a_table_of_mariadb_that_is_altered_while_it_is_read_again_is_read_to_its_end(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_EVERY_S", 0.05)
    monkeypatch.setattr(mysql_source, "_REFRESH_S", 0.001)  # a snapshot for each range
    with fresh_mariadb("altered") as url, contextlib.closing(Database(url)) as database, connect(stream) as connection:
        database.run("CREATE TABLE items (id int PRIMARY KEY, note text)")
        database.run(f"INSERT INTO items VALUES {', '.join(f'({number}, NULL)' for number in range(FEW))}")
        with running_mariadb(url, stream, "items", name="altered", snapshot_rows=1) as capture:
            capture.wait_for(database)
            is_done = request_snapshot(connection, "altered", "items")
            wait_until(lambda: _refreshed_rows(stream, "altered") > 2, "it is read again")
            database.run("ALTER TABLE items ADD COLUMN extra int NOT NULL DEFAULT 7")
            wait_until(lambda: is_done() or capture.error is not None, "it is done")
            capture.wait_for(database)
        table = materialised(stream, "altered.altered.items")
        assert len(table.rows) == FEW
        assert len(table.snapshot_keys) == 2 * FEW
        assert table.rows[table.snapshot_keys[-1]] == {"id": FEW - 1, "note": None, "extra": 7}


def test_a_request_that_lacks_a_right_is_refused_and_the_capture_goes_on(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*arguments: Any) -> Any:
        raise ConfigError("GRANT RELOAD ON *.* TO <this user>")

    monkeypatch.setattr(requests, "_EVERY_S", 0.05)
    with fresh_mariadb("denied") as url, contextlib.closing(Database(url)) as database, connect(stream) as connection:
        database.run("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        with running_mariadb(url, stream, "items", name="denied") as capture:
            capture.wait_for(database)
            monkeypatch.setattr(mysql_source, "begin_snapshot", denied)
            is_done = request_snapshot(connection, "denied", "items")
            with pytest.raises(ConfigError, match="is not read again: GRANT RELOAD"):
                wait_until(is_done, "the request is refused")
            database.run("INSERT INTO items VALUES (2)")
            capture.wait_for(database)
        assert len(materialised(stream, "denied.denied.items").rows) == 2


def test_a_request_waits_for_a_capture_that_does_not_run_and_a_newer_one_starts_over(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_EVERY_S", 0.05)
    with fresh_database() as url, psycopg.connect(url, autocommit=True) as database, connect(stream) as connection:
        database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        database.execute("INSERT INTO users VALUES (1), (2)")
        with running(url, stream, "users", name="asked") as capture:
            capture.wait_for(database)
        is_done = request_snapshot(connection, "asked", "users")
        newer = request_snapshot(connection, "asked", "public.users")
        assert is_done()
        assert not newer()
        with running(url, stream, "users", name="asked") as capture:
            wait_until(lambda: newer() or capture.is_over(), "it is done")
            database.execute("INSERT INTO users VALUES (3)")
            capture.wait_for(database)
        table = materialised(stream, topic_of(url, "users"))
        assert sorted(table.snapshot_keys) == ['{"id":1}', '{"id":1}', '{"id":2}', '{"id":2}']
        with running(url, stream, "users", name="asked") as capture:
            capture.wait_for(database)
        assert len(materialised(stream, topic_of(url, "users")).snapshot_keys) == 4


def test_a_request_for_a_table_that_is_left_out_meanwhile_is_refused(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_EVERY_S", 0.05)
    with fresh_database() as url, psycopg.connect(url, autocommit=True) as database, connect(stream) as connection:
        database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with running(url, stream, "users", "orders", name="fewer") as capture:
            capture.wait_for(database)
        is_done = request_snapshot(connection, "fewer", "orders")
        with running(url, stream, "users", name="fewer") as capture:
            capture.wait_for(database)
            with pytest.raises(ConfigError, match=r"public\.orders is no longer captured"):
                wait_until(is_done, "the request is refused")


def test_a_request_for_what_is_not_captured_is_refused(stream: str) -> None:
    with fresh_database() as url, psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        with running(url, stream, "users", name="small") as capture:
            capture.wait_for(database)
        with connect(stream) as connection:
            with pytest.raises(ConfigError, match="has no capture of the name 'other'"):
                request_snapshot(connection, "other", "users")
            with pytest.raises(ConfigError, match=r"'orders' is not captured: the capture 'small' has public\.users"):
                request_snapshot(connection, "small", "orders")
        done = CliRunner().invoke(app, ["cdc", "snapshot", "small", stream, "--table", "users"])
        assert done.exit_code == 0, done.stderr
        assert "will read users again" in done.stderr


def test_rows_are_not_read_before_a_query_sees_what_is_stored() -> None:
    assert not hides("10:10:", [1, 9])
    assert hides("10:10:", [10])
    assert hides("5:10:5,7", [6, 7])
    assert not hides("5:10:5,7", [6, 8, 9])
    epoch = 3 << 32
    assert not hides(f"{epoch + 5}:{epoch + 10}:", [9, (1 << 32) - 1]), "numbers of the epoch before"
    assert hides(f"{epoch + 5}:{epoch + 10}:{epoch + 5}", [5])
