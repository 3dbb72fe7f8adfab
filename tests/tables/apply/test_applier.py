"""Appliers: upserts, deletes, truncates, new columns, and what is refused because it would lose data."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import ChangesLostError, ConfigError, SchemaMismatchError, SerdeError
from penstock.model import Position
from penstock.model.clock import SystemClock
from penstock.streams import Connection
from penstock.tables import Capture
from penstock.tables.apply import Applier, compare, freshness
from penstock.tables.changes import TRUNCATE_KEY
from tests.postgres import shared_postgres
from tests.seeds import seed_of
from tests.tables.captured import wait_until

_numbers = itertools.count(1)


def query(url: str, sql: str) -> list[Any]:
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)) as database:
            return database.execute(sql).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description is not None else []


def write(stream: Connection, topic: str, *changes: tuple[int | None, Any]) -> None:
    """Changes in the flat form: a key and its row, None for a tombstone; the key None is a truncate."""
    for key, row in changes:
        if key is None:
            stream.send(topic, b'{"__op":"t","__ts_ms":1}', key=TRUNCATE_KEY)
        else:
            value = None if row is None else json.dumps({"id": key, **row, "__op": "c", "__lsn": 1, "__ts_ms": 1})
            stream.send(topic, None if value is None else value.encode(), key=json.dumps({"id": key}).encode())
    stream.flush(30)


def apply(stream: Connection, topic: str, target: str, **options: Any) -> None:
    Applier(stream, topic, target, table="users", format="flat", **options).run(end=Position.LATEST)


def test_a_missing_table_is_created_and_follows_upserts_deletes_truncates_and_new_columns(
    stream: Connection, topic: str, target: str
) -> None:
    write(stream, topic, (1, {"name": "Ada"}), (2, {"name": None}), (None, None), (3, {"name": "Grace", "age": 45}))
    write(stream, topic, (4, {"name": "Alan"}), (4, None), (3, {"name": "Grace H.", "age": 46.5, "tags": ["x", None]}))
    apply(stream, topic, target)
    assert query(target, "SELECT id, name, age + 0.0 FROM users") == [(3, "Grace H.", 46.5)]
    write(stream, topic, (3, {"name": "Grace", "age": 47, "tags": []}), (5, {"name": "", "age": None, "ok": True}))
    apply(stream, topic, target)
    rows = query(target, "SELECT id, name, CAST(tags AS text), ok FROM users ORDER BY id")
    assert rows == [(3, "Grace", "[]", None), (5, "", None, True)]


def test_what_would_lose_data_is_refused_and_applied_after_the_table_was_changed(
    stream: Connection, topic: str, target: str
) -> None:
    query(target, "CREATE TABLE users (id bigint PRIMARY KEY, amount numeric(5,1), name text)")
    write(stream, topic, (1, {"amount": "1.5" if not target.startswith("sqlite") else 1.5, "name": "a"}))
    write(stream, topic, (2, {"amount": "1.25", "name": "b"}))
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=r"column 'amount', row \{'id': 2\}: '1.25' does not fit"):
            apply(stream, topic, target, batch=1)
    assert query(target, "SELECT id FROM users") == [(1,)]
    query(target, "ALTER TABLE users DROP COLUMN amount")
    query(target, "ALTER TABLE users ADD COLUMN amount text")
    apply(stream, topic, target, batch=1)
    assert query(target, "SELECT id, amount FROM users ORDER BY id") == [(1, None), (2, "1.25")]


def test_tables_that_cannot_take_the_rows_are_refused(stream: Connection, topic: str, target: str) -> None:
    write(stream, topic, (1, {"name": "Ada"}))
    with pytest.raises(SchemaMismatchError, match="there is no table users"):
        apply(stream, topic, target, create=False)
    query(target, "CREATE TABLE users (id bigint)")
    with pytest.raises(SchemaMismatchError, match=r"no primary key or unique index over \(id\)"):
        apply(stream, topic, target)
    query(target, "DROP TABLE users")
    query(target, "CREATE TABLE users (id bigint PRIMARY KEY)")
    with pytest.raises(SchemaMismatchError, match="no column 'name', and adding columns is off"):
        apply(stream, topic, target, evolve=False)
    query(target, "DROP TABLE users")
    query(target, "CREATE TABLE users (id bigint PRIMARY KEY, name text, needed bigint NOT NULL)")
    with pytest.raises(SchemaMismatchError, match=r"refuses rows of the topic: .*needed"):
        apply(stream, topic, target)
    with pytest.raises(SerdeError, match=r"has no `op`.*--format flat"):
        Applier(stream, topic, target, table="users").run(end=Position.LATEST)


def test_a_second_unique_index_makes_changes_apply_one_by_one(stream: Connection, topic: str, target: str) -> None:
    query(target, "CREATE TABLE users (id bigint PRIMARY KEY, mail text UNIQUE)")
    write(
        stream,
        topic,
        (1, {"mail": "a"}),
        (2, {"mail": "b"}),
        (1, {"mail": "c"}),
        (2, {"mail": "a"}),
        (1, {"mail": "b"}),
    )
    apply(stream, topic, target)
    assert query(target, "SELECT id, mail FROM users ORDER BY id") == [(1, "b"), (2, "a")]


def test_a_truncate_in_a_topic_of_several_partitions_is_refused(stream: Connection, tmp_path: Path) -> None:
    name = f"users-{next(_numbers)}"
    stream.create_topic(name, 2)
    write(stream, name, (None, None))
    with pytest.raises(SchemaMismatchError, match="has 2 partitions and a truncate"):
        apply(stream, name, f"sqlite:{tmp_path / 'copy.db'}")


def test_options_that_cannot_work_are_refused() -> None:
    for target, options, problem in (
        ("redis://localhost", {}, "not a database whose tables can be written"),
        ("sqlite:x.db", {"format": "xml"}, "must be one of plain, flat, debezium"),
        ("sqlite:x.db", {"name": "a b"}, "must have 1 to 150"),
        ("sqlite:x.db", {"batch": 0}, "must be an integer >= 1"),
    ):
        with pytest.raises(ConfigError, match=problem):
            Applier("log:./data", "users", target, table="users", **options)


@pytest.fixture
def copied(stream: Connection, tmp_path: Path, target: str) -> tuple[str, str, str]:
    """A SQLite source with its copy, and the topic between."""
    source, name = f"sqlite:{tmp_path / 'source.db'}", f"shop{next(_numbers)}"
    query(source, "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, ratio REAL, raw BLOB)")
    query(source, "INSERT INTO users VALUES (1, 'Ada', 0.5, x'00ff'), (2, 'Grace', 2.0, NULL), (3, NULL, NULL, NULL)")
    with Capture(source, stream, tables=["users"], name=name, prefix=name, snapshot="only") as capture:
        capture.run()
    topic = f"{name}.main.users"
    Applier(stream, topic, target, table="users").run(end=Position.LATEST)
    return source, target, topic


def test_drift_is_found_and_repaired_by_ranges_of_keys(copied: tuple[str, str, str]) -> None:
    source, target, _ = copied
    assert compare(source, target, table="users", pause_s=0.0).drifted == []
    query(target, "UPDATE users SET name = 'Eve' WHERE id = 1")
    query(target, "DELETE FROM users WHERE id = 2")
    query(target, "INSERT INTO users (id, name) VALUES (9, 'Mallory')")
    for repair in (False, True):
        found = compare(source, target, table="users", pause_s=0.0, page_rows=2, repair=repair)
        assert [(str(each.kind), each.key["id"], each.columns) for each in found.drifted] == [
            ("different", 1, ["name"]), ("missing", 2, []), ("extra", 9, []),
        ]  # fmt: skip
        assert (found.rows, found.is_same) == (3, repair)
    assert compare(source, target, table="users", pause_s=0.0).drifted == []
    assert query(target, "SELECT id, name, ratio + 0.0 FROM users ORDER BY id") == [
        (1, "Ada", 0.5), (2, "Grace", 2.0), (3, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("source_is_postgres", [False, True])
def test_tables_with_binary_keys_are_compared_and_repaired(
    target: str, tmp_path: Path, source_is_postgres: bool
) -> None:
    chance = random.Random(seed_of())
    source = shared_postgres().fresh_database() if source_is_postgres else f"sqlite:{tmp_path / 'source.db'}"
    keys = [bytes([number]) + chance.randbytes(number % 4) for number in range(40)]
    for url in (source, target):
        kind, mark = ("BLOB", "x'{}'") if url.startswith("sqlite") else ("bytea", "'\\x{}'")
        query(url, f"CREATE TABLE users (id {kind}, part int, name text, PRIMARY KEY (id, part))")
        values = ", ".join(f"({mark.format(key.hex())}, 1, 'n')" for key in keys)
        query(url, f"INSERT INTO users VALUES {values}")
    mark = "x'{}'" if target.startswith("sqlite") else "'\\x{}'"
    assert compare(source, target, table="users", pause_s=0.0, page_rows=7).rows == 40
    query(target, f"DELETE FROM users WHERE id = {mark.format(keys[5].hex())}")
    query(target, f"UPDATE users SET name = 'Eve' WHERE id = {mark.format(keys[6].hex())}")
    query(target, f"INSERT INTO users VALUES ({mark.format('ffff')}, 1, 'Mallory')")
    found = compare(source, target, table="users", pause_s=0.0, page_rows=7, repair=True)
    assert sorted((str(each.kind), base64.b64decode(each.key["id"])) for each in found.drifted) == [
        ("different", keys[6]), ("extra", b"\xff\xff"), ("missing", keys[5]),
    ]  # fmt: skip
    assert compare(source, target, table="users", pause_s=0.0, page_rows=7).drifted == []


def test_text_that_looks_like_base64_and_bytes_may_be_keys_of_one_column(tmp_path: Path) -> None:
    urls = [f"sqlite:{tmp_path / name}" for name in ("a.db", "b.db")]
    for url in urls:
        query(url, "CREATE TABLE t (id TEXT PRIMARY KEY) WITHOUT ROWID")
        query(url, "INSERT INTO t VALUES ('abcd'), (x'00ff'), ('plain'), (x'ff')")
    assert compare(*urls, table="t", pause_s=0.0, page_rows=1).rows == 4
    query(urls[1], "DELETE FROM t WHERE id = x'ff'")
    assert [each.kind for each in compare(*urls, table="t", pause_s=0.0, page_rows=1).drifted] == ["missing"]


def test_a_row_that_is_only_late_is_not_drift_and_one_that_keeps_changing_is_undecided(
    copied: tuple[str, str, str],
) -> None:
    source, target, _ = copied
    query(source, "UPDATE users SET name = 'late' WHERE id = 1")
    query(source, "UPDATE users SET name = 'busy' WHERE id = 2")
    names = iter(["busy 2", "busy 3"])

    def pause(_: float) -> None:
        query(target, "UPDATE users SET name = 'late' WHERE id = 1")
        query(source, f"UPDATE users SET name = '{next(names)}' WHERE id = 2")

    found = compare(source, target, table="users", wait=pause)
    assert found.late == 1
    assert [(str(each.kind), each.key) for each in found.drifted] == [("undecided", {"id": 2})]


def test_a_repair_does_not_replace_a_newer_row_by_an_older_one(
    copied: tuple[str, str, str], stream: Connection
) -> None:
    """The source changes, and the change is applied, between the last comparison and the repair."""
    source, target, topic = copied
    query(target, "UPDATE users SET name = 'drifted' WHERE id = 1")

    def pause(_: float) -> None:
        query(source, "UPDATE users SET name = 'newest' WHERE id = 1")

    found = compare(source, target, table="users", reads=2, wait=pause, repair=True)
    assert [each.is_repaired for each in found.drifted] == [True]
    assert query(target, "SELECT name FROM users WHERE id = 1") == [("newest",)]
    Applier(stream, topic, target, table="users").run(end=Position.LATEST)
    assert query(target, "SELECT name FROM users WHERE id = 1") == [("newest",)]


def test_an_applier_that_was_away_for_longer_than_deletions_are_kept_does_not_keep_deleted_rows_in_silence(
    stream: Connection, topic: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.admin().change_config(topic, {"cleanup.policy": "compact", "delete.retention.ms": "60000"})
    write(stream, topic, (1, {"name": "Ada"}), (2, {"name": "Grace"}))
    apply(stream, topic, target)
    away = [0]
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: time.time_ns() // 1_000_000 + away[0])
    away[0] = 50_000
    write(stream, topic, (3, {"name": "Alan"}))
    apply(stream, topic, target)
    away[0] = 109_000  # less than a minute after the last run
    write(stream, topic, (4, {"name": "Alan"}))
    apply(stream, topic, target)
    away[0] = 300_000
    apply(stream, topic, target)  # nothing was written meanwhile: nothing can be missing
    away[0] = 400_000
    write(stream, topic, (1, None))
    with pytest.raises(ChangesLostError, match=r"min.*ago, and keeps deletions for 1 min.*cdc compare --repair"):
        apply(stream, topic, target)
    assert query(target, "SELECT id FROM users ORDER BY id") == [(1,), (2,), (3,), (4,)]
    apply(stream, topic, target, continue_after_loss=True)
    apply(stream, topic, target)
    assert query(target, "SELECT id FROM users ORDER BY id") == [(2,), (3,), (4,)]


def test_a_running_applier_notes_now_and_then_that_its_target_is_fresh(
    stream: Connection, topic: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "_LOOK_S", 0.02)
    stream.admin().change_config(topic, {"cleanup.policy": "compact"})
    begun_ms = time.time_ns() // 1_000_000
    applier = Applier(stream, topic, target, table="users", format="flat")
    thread = threading.Thread(target=applier.run)
    thread.start()
    try:
        write(stream, topic, (1, {"name": "Ada"}))
        wait_until(lambda: applier.applied == 1, "the row is applied")
        moments = []
        for _ in range(2):
            moments.append(time.time_ns() // 1_000_000)
            wait_until(lambda: _fresh_ms(target) > moments[-1], "it is noted")
        assert begun_ms < moments[0] <= moments[1]
    finally:
        applier.stop()
        thread.join()


def _fresh_ms(target: str) -> int:
    rows = query(target, "SELECT fresh_ms FROM penstock_appliers")
    return int(rows[0][0]) if rows else 0
