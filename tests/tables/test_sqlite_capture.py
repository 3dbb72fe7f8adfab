"""A capture of SQLite: triggers in the writer's transaction, killed and continued."""

from __future__ import annotations

import base64
import contextlib
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ChangesLostError, ConfigError, HistoryLostError
from penstock.streams import connect
from penstock.tables import Capture, Table
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.tables.captured import (
    CaptureProcess,
    fail_first_set_up,
    materialised,
    random_text,
    wait_a_while,
    wait_until,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / f"{tmp_path.name.lower()}.db", isolation_level=None, timeout=30)
    with contextlib.closing(connection):
        connection.execute("PRAGMA journal_mode = WAL")
        yield connection


def url_of(database: sqlite3.Connection) -> str:
    return "sqlite:" + str(database.execute("PRAGMA database_list").fetchone()[2])


def topic_of(database: sqlite3.Connection, table: str) -> str:
    return f"{Path(url_of(database)).stem}.main.{table}"


@contextlib.contextmanager
def running(database: sqlite3.Connection, stream: str, *tables: str, **options: Any) -> Iterator[Capture]:
    capture = Capture(url_of(database), stream, tables=tables, **options)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: errors or capture.progress.phase == "streaming", "the capture streams")
        yield capture
        wait_until(lambda: errors or not waiting_changes(database), "everything is captured")
    finally:
        capture.close()
        thread.join()
    assert not errors, errors


def waiting_changes(database: sqlite3.Connection) -> int:
    (table,) = database.execute(
        "SELECT name FROM sqlite_master WHERE name LIKE 'penstock_changes%' AND type = 'table'"
    ).fetchone()
    (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    return int(count)


def test_rows_and_changes_of_every_kind_of_value(database: sqlite3.Connection, stream: str) -> None:
    database.execute('CREATE TABLE "odd table" (id INTEGER PRIMARY KEY, "va""l\'ue" ANY, note TEXT)')
    values: list[Any] = [1, -(2**63), 0.1, 1 / 3, 1e300, float("inf"), 'it\'s "quoted" \n€😀', "", b"\x00\xff", None]
    shown = [*values[:5], "Infinity", *values[6:8], base64.b64encode(b"\x00\xff").decode(), None]
    insert = 'INSERT INTO "odd table" VALUES (?, ?, NULL)'
    database.executemany(insert, list(enumerate(values)))
    with running(database, stream, "odd*"):
        database.executemany(insert, [(100 + number, value) for number, value in enumerate(values)])
    rows = materialised(stream, topic_of(database, "odd_table")).rows
    for first in (0, 100):
        assert [rows[f'{{"id":{first + number}}}']["va\"l'ue"] for number in range(len(values))] == shown


@pytest.mark.parametrize("count", [63, 64, 130])
def test_tables_of_many_columns_are_captured(database: sqlite3.Connection, stream: str, count: int) -> None:
    names = ["id", *(f"c{number}" for number in range(1, count))]
    database.execute(f"CREATE TABLE wide ({', '.join(names)}, PRIMARY KEY (id))")
    insert = f"INSERT INTO wide VALUES ({', '.join('?' * count)})"
    database.execute(insert, [1, *range(1, count)])
    with running(database, stream, "wide", name=f"wide{count}"):
        database.execute(insert, [2, *range(1, count)])
        database.execute(f"UPDATE wide SET {names[-1]} = 'changed' WHERE id = 2")
        database.execute("DELETE FROM wide WHERE id = 1")
    rows = materialised(stream, topic_of(database, "wide")).rows
    assert list(rows.values()) == [dict(zip(names, [2, *range(1, count - 1), "changed"], strict=True))]


def test_a_killed_capture_neither_loses_nor_repeats_a_change(database: sqlite3.Connection, stream: str) -> None:
    chance = random.Random(seed_of())
    database.execute("CREATE TABLE items (a TEXT, b INTEGER, body TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID")
    database.executemany(
        "INSERT INTO items VALUES (?, ?, ?)", [(f"k'{n % 5}", n, random_text(chance)) for n in range(60)]
    )
    capture = CaptureProcess(
        url_of(database), stream, "-t", "items", "--snapshot-rows", "7", "--batch-rows", "5", "--quiet"
    )
    for _ in range(times(4, soak=40)):
        capture.start()
        wait_until(lambda: _has_triggers(capture, database), "the triggers are there")
        for _ in range(chance.randint(1, 30)):
            _change(database, chance)
            capture.check_running()
        wait_a_while(chance.uniform(0.0, 1.0))
        capture.kill()
    # Something waits for the last capture, so it is stopped only once it runs.
    database.execute("INSERT INTO items VALUES ('last', 0, 'last')")
    capture.start()
    wait_until(lambda: not waiting_changes(database), "everything is captured")
    capture.terminate()
    table = materialised(stream, topic_of(database, "items"))
    expected = {(a, b): body for a, b, body in database.execute("SELECT * FROM items")}
    assert {(row["a"], row["b"]): row["body"] for row in table.rows.values()} == expected
    assert len(table.snapshot_keys) == len(set(table.snapshot_keys))
    told = [event.lsn for event in table.events]
    assert told == sorted(told)
    (last,) = database.execute("SELECT seq FROM sqlite_sequence").fetchone()
    assert set(told) == set(range(1, last + 1))


def _has_triggers(capture: CaptureProcess, database: sqlite3.Connection) -> bool:
    capture.check_running()
    return bool(database.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger'").fetchone())


def _change(database: sqlite3.Connection, chance: random.Random) -> None:
    """One transaction."""
    database.execute("BEGIN IMMEDIATE")
    for _ in range(chance.choice((1, 1, 3, 12))):
        key = (f"k'{chance.randrange(5)}", chance.randrange(80))
        kind = chance.randrange(4)
        if kind == 0:
            upsert = "INSERT INTO items VALUES (?, ?, ?) ON CONFLICT (a, b) DO UPDATE SET body = excluded.body"
            database.execute(upsert, (*key, random_text(chance)))
        elif kind == 1:
            database.execute("DELETE FROM items WHERE b = ?", key[1:])
        elif kind == 2:
            database.execute("UPDATE OR IGNORE items SET b = b + 1000 WHERE b = ?", key[1:])
        else:
            database.execute("UPDATE items SET body = body || '!' WHERE b = ?", key[1:])
    database.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")


def test_columns_that_are_added_while_it_runs_appear(database: sqlite3.Connection, stream: str) -> None:
    database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    database.execute("INSERT INTO users VALUES (1, 'Ada')")
    with running(database, stream, "users") as capture:
        database.execute("ALTER TABLE users ADD COLUMN age INTEGER DEFAULT 36")
        database.execute("INSERT INTO users VALUES (2, 'Grace', 85)")
        wait_until(lambda: _age(stream, database) == {1: 36, 2: 85}, "the new column is there")
        assert capture.progress.phase == "streaming"
    database.execute("ALTER TABLE users ADD COLUMN more TEXT")
    database.execute("UPDATE users SET more = 'x', age = 1 WHERE id = 2")
    with running(database, stream, "users"):
        pass
    rows = materialised(stream, topic_of(database, "users")).rows
    assert rows['{"id":2}'] == {"id": 2, "name": "Grace", "age": 1, "more": "x"}


def _age(stream: str, database: sqlite3.Connection) -> dict[int, Any]:
    rows = materialised(stream, topic_of(database, "users")).rows
    return {row["id"]: row.get("age") for row in rows.values()}


def test_a_captured_topic_with_a_history_can_be_looked_at_as_it_was(database: sqlite3.Connection, stream: str) -> None:
    database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    database.execute("INSERT INTO users VALUES (1, 'Ada')")
    with running(database, stream, "users"):
        database.execute("UPDATE users SET name = 'Ada L.'")
    with connect(stream) as connection, Table(connection, topic_of(database, "users"), format="debezium") as users:
        assert users[1]["name"] == "Ada L."
        then = users.pointers
        for history_s in (None, 3600.0):
            with running(database, stream, "users", history_s=history_s):
                database.execute("UPDATE users SET name = name || '!'")
                wait_until(lambda: users[1]["name"].endswith("!"), "the change arrives")
            if history_s is None:
                with pytest.raises(HistoryLostError, match=r"min\.compaction\.lag\.ms"):
                    users.as_of(then)
        assert users.as_of(then)[1]["name"] == "Ada L."
    with pytest.raises(ConfigError, match="history_s=-1 must be seconds"):
        Capture(url_of(database), stream, tables=["users"], history_s=-1)


def test_changes_that_are_gone_are_data_loss(database: sqlite3.Connection, stream: str) -> None:
    database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
    database.execute("INSERT INTO users VALUES (1), (2)")
    with running(database, stream, "users", name="lost"):
        database.execute("INSERT INTO users VALUES (3)")
    database.execute("DROP TABLE penstock_changes_lost")
    for trigger in ("insert", "update", "delete"):
        database.execute(f"DROP TRIGGER penstock_changes_lost_users_{trigger}")
    database.execute("DELETE FROM users WHERE id = 1")
    with pytest.raises(ChangesLostError, match="--snapshot again"):
        Capture(url_of(database), stream, tables=["users"], name="lost").run()
    with running(database, stream, "users", name="lost", snapshot="again"):
        pass
    assert set(materialised(stream, topic_of(database, "users")).rows) == {'{"id":2}', '{"id":3}'}


def test_a_new_snapshot_that_was_asked_for_is_taken_although_the_stream_was_away(
    database: sqlite3.Connection, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    with running(database, stream, "t", name="anew"):
        pass
    failures = fail_first_set_up(monkeypatch)
    with running(database, stream, "t", name="anew", snapshot="again"):
        pass
    assert failures == ["failed"]
    assert len(materialised(stream, topic_of(database, "t")).snapshot_keys) == 4


def test_what_cannot_be_captured_is_refused(database: sqlite3.Connection, stream: str, tmp_path: Path) -> None:
    database.execute("CREATE TABLE bare (a)")
    with pytest.raises(ConfigError, match="has no PRIMARY KEY"):
        Capture(url_of(database), stream, tables=["bare"]).run()
    with pytest.raises(ConfigError, match="no table matches 'other'"):
        Capture(url_of(database), stream, tables=["other"]).run()
    with pytest.raises(ConfigError, match="there is no SQLite database"):
        Capture(f"sqlite:{tmp_path / 'none.db'}", stream, tables=["t"]).run()
    with pytest.raises(ConfigError, match="only PostgreSQL has it"):
        Capture(url_of(database), stream, tables=["t"], slot="s")
    (tmp_path / "text.db").write_text("no database at all, only text" * 100)
    with pytest.raises(ConfigError, match="cannot be captured"):
        Capture(f"sqlite:{tmp_path / 'text.db'}", stream, tables=["t"]).run()
