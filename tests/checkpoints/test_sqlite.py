"""What is particular about checkpoints in SQLite."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoints.sqlite.store import SCHEMA, SqliteCheckpoints
from penstock.databases.sqlite import prepare
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    CorruptCheckpointError,
    FencedError,
    StoreUnavailableError,
    TransactionError,
)
from penstock.model import Lease
from tests.checkpoints.samples import KEY, NOW_MS, change, lease_on, start_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteCheckpoints]:
    with SqliteCheckpoints(path) as opened:
        yield opened


def test_the_database_may_be_the_users_own(path: Path) -> None:
    with sqlite3.connect(path) as mine:
        mine.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        mine.execute("INSERT INTO orders VALUES (1)")
    mine.close()
    with SqliteCheckpoints(path) as store:
        lease = lease_on(store)
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES (2)")
            tx.save(lease, KEY, change(1))
        assert start_of(store) == 1
    with sqlite3.connect(path) as mine:
        assert mine.execute("SELECT id FROM orders").fetchall() == [(1,), (2,)]
    mine.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    content = b"this is a shopping list\n" * 100
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not a SQLite database"):
        SqliteCheckpoints(path)
    assert path.read_bytes() == content


def test_tables_of_a_newer_version_are_refused(path: Path) -> None:
    SqliteCheckpoints(path).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE penstock_schema SET version = 99")
    other.close()
    with pytest.raises(ConfigError, match=r"version 99.*supports only version 1"):
        SqliteCheckpoints(path)


def test_tables_of_our_names_that_are_not_ours_are_refused(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE penstock_lease (x)")
    other.close()
    with pytest.raises(ConfigError, match="that this program did not create"):
        SqliteCheckpoints(path)


def test_a_damaged_database_is_told_as_one(path: Path) -> None:
    with SqliteCheckpoints(path) as store:
        lease = lease_on(store)
        for number in range(300):
            store.save(lease, KEY, change(number))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="Restore it from a backup"):
        SqliteCheckpoints(path).history(KEY)


@pytest.mark.parametrize(("setting", "level"), [("NORMAL", 1), ("FULL", 2), ("full", 2)])
def test_synchronous_is_obeyed(path: Path, setting: str, level: int) -> None:
    with SqliteCheckpoints(path, synchronous=setting) as store, store.transaction() as tx:
        assert tx.connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert tx.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match="folder cannot be created"):
        SqliteCheckpoints(tmp_path / "file" / "x.db")


def test_many_processes_may_open_a_new_file_at_once(path: Path) -> None:
    program = (
        "import sys; from penstock.checkpoints.sqlite.store import SqliteCheckpoints\n"
        "sys.stdin.readline(); store = SqliteCheckpoints(sys.argv[1]); store.claim('g', sys.argv[2], 'a', None)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(path), f"x{number}"], stdin=subprocess.PIPE)
        for number in range(6)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0] * 6
    with SqliteCheckpoints(path) as store:
        assert len(store.leases("g")) == 6


class Overtaken(sqlite3.Connection):
    """Another process makes the tables after this one has found none, just before it begins to make them."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            (_, _, file) = super().execute("PRAGMA database_list").fetchone()
            SqliteCheckpoints(file).close()
        return super().execute(sql, parameters)


def test_tables_that_somebody_quicker_has_just_made_are_no_strangers(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, factory=Overtaken)) as connection:
        prepare(connection, str(path), SCHEMA, "FULL", 5.0)
        assert connection.execute("SELECT version FROM penstock_schema").fetchall() == [(SCHEMA.version,)]


def test_another_process_that_writes_for_too_long_makes_the_store_unavailable(path: Path) -> None:
    with SqliteCheckpoints(path, busy_timeout_s=0.05) as store:
        lease = lease_on(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="another process"):
            store.save(lease, KEY, change(1, told=False))
        with pytest.raises(StoreUnavailableError, match="another process"):
            store.save(lease, KEY, change(1))
        with pytest.raises(StoreUnavailableError), store.transaction():
            pytest.fail("a transaction began while another process was writing")
        assert start_of(store) is None
        other.execute("COMMIT")
        other.close()
        store.save(lease, KEY, change(1))
        assert start_of(store) == 1


def test_another_threads_transaction_that_takes_too_long_makes_the_store_unavailable(path: Path) -> None:
    with SqliteCheckpoints(path, busy_timeout_s=0.05) as store:
        lease = lease_on(store)
        with store.transaction():
            thread_raises(StoreUnavailableError, lambda: store.renew(lease))
        assert store.renew(lease).beat == 1


def test_reading_waits_for_no_transaction(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    store.save(lease, KEY, change(1))
    with store.transaction() as tx:
        tx.save(lease, KEY, change(2))
        assert start_of(store) == 1
        assert len(store.history(KEY)) == 1
    assert start_of(store) == 2


def test_a_thread_that_writes_past_its_own_transaction_is_told(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        with pytest.raises(TransactionError, match="inside a transaction"):
            store.save(lease, KEY, change(1))
        with pytest.raises(TransactionError, match="inside a transaction"), store.transaction():
            pytest.fail("a second transaction began")
        tx.save(lease, KEY, change(2))
    assert start_of(store) == 2


ENDINGS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "close()": lambda connection: connection.close(),
    "with connection": lambda connection: connection.__exit__(None, None, None),
    "executescript": lambda connection: connection.executescript("SELECT 1"),
    "COMMIT": lambda connection: connection.execute("COMMIT"),
    "our own text, again": lambda connection: connection.execute("COMMIT  /* penstock */"),
    "commented": lambda connection: connection.execute("/* x */ COMMIT;"),
    "cursor": lambda connection: connection.cursor().execute("END TRANSACTION"),
    "ROLLBACK": lambda connection: connection.execute("ROLLBACK"),
    "BEGIN": lambda connection: connection.execute("BEGIN"),
    "isolation_level": lambda connection: setattr(connection, "isolation_level", ""),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_is_not_ended_from_inside(store: SqliteCheckpoints, ending: str) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.execute("CREATE TABLE effect (x)")

    def use() -> None:
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (1)")
            ENDINGS[ending](tx.connection)
            tx.save(lease, KEY, change(1))

    with pytest.raises(TransactionError, match="ends with its block"):
        use()
    assert effects(store) == []
    assert start_of(store) is None


def test_a_refusal_that_the_user_swallows_changes_nothing(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.execute("CREATE TABLE effect (x)")
        with pytest.raises(sqlite3.DatabaseError):
            tx.connection.execute("COMMIT")
        tx.connection.execute("INSERT INTO effect VALUES (1)")
        tx.save(lease, KEY, change(1))
    assert effects(store) == [1]
    assert start_of(store) == 1


def test_a_rollback_by_a_conflict_clause_is_noticed(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.execute("CREATE TABLE effect (x INTEGER PRIMARY KEY)")
        tx.connection.execute("INSERT INTO effect VALUES (1)")

    def use(saves: bool) -> None:
        with store.transaction() as tx:
            tx.connection.execute("INSERT INTO effect VALUES (2)")
            with pytest.raises(sqlite3.IntegrityError):
                tx.connection.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
            if saves:
                tx.save(lease, KEY, change(1))

    for saves in (True, False):
        with pytest.raises(TransactionError, match="INSERT OR ROLLBACK"):
            use(saves)
    assert effects(store) == [1]
    assert start_of(store) is None


def test_what_a_transaction_sets_on_the_connection_does_not_outlast_it(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    with store.transaction() as tx:
        tx.connection.row_factory = lambda cursor, row: {"nonsense": row}
        tx.connection.text_factory = bytes
        tx.save(lease, KEY, change(1))
    with store.transaction() as tx:
        assert tx.connection.execute("SELECT 'x'").fetchone() == ("x",)
    assert store.leases(KEY.group) == [lease]


def test_on_connect_prepares_the_connection_of_all_transactions(path: Path) -> None:
    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.create_function("twice", 1, lambda x: 2 * x)
        connection.row_factory = sqlite3.Row

    with SqliteCheckpoints(path, on_connect=prepare) as store:
        lease = lease_on(store)
        for number in range(2):
            with store.transaction() as tx:
                assert tx.connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1
                assert tx.connection.execute("SELECT twice(21) AS x").fetchone()["x"] == 42
                tx.save(lease, KEY, change(number))
        assert start_of(store) == 1
        with pytest.raises(FencedError):
            store.renew(lease_after(store))


def lease_after(store: SqliteCheckpoints) -> Lease:
    """A lease that has just been lost."""
    old = lease_on(store)
    lease_on(store, owner="b")
    return old


def test_a_cursor_left_half_read_does_not_keep_others_out(path: Path) -> None:
    with SqliteCheckpoints(path) as store, SqliteCheckpoints(path) as other:
        with store.transaction() as tx:
            tx.connection.execute("CREATE TABLE effect (x)")
            tx.connection.executemany("INSERT INTO effect VALUES (?)", [(number,) for number in range(10)])
            left = tx.connection.execute("SELECT x FROM effect")
            assert left.fetchone() == (0,)
        lease = lease_on(other)
        other.save(lease, KEY, change(1))
        store.save(lease, KEY, change(2))
        with store.transaction() as tx:
            tx.save(lease, KEY, change(3))
        assert start_of(other) == 3
        with pytest.raises(sqlite3.ProgrammingError):
            left.fetchone()


def test_a_deferred_constraint_that_fails_at_the_commit_rolls_everything_back(path: Path) -> None:
    def prepare(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")

    with SqliteCheckpoints(path, on_connect=prepare) as store:
        lease = lease_on(store)
        with store.transaction() as tx:
            tx.connection.execute("CREATE TABLE parent (x INTEGER PRIMARY KEY)")
            tx.connection.execute("CREATE TABLE effect (x REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

        def use() -> None:
            with store.transaction() as tx:
                tx.connection.execute("INSERT INTO effect VALUES (7)")
                tx.save(lease, KEY, change(1))

        with pytest.raises(sqlite3.IntegrityError):
            use()
        assert effects(store) == []
        assert start_of(store) is None
        store.save(lease, KEY, change(1))


def test_a_store_does_not_cross_a_fork(store: SqliteCheckpoints) -> None:
    lease_on(store)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def use() -> None:
        try:
            store.groups()
        except ConfigError as error:
            queue.put(str(error))
        os._exit(0)

    child = context.Process(target=use)
    child.start()
    child.join(30)
    assert "opened by another process" in queue.get()


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteCheckpoints(path)
    store.close()
    for use in (store.groups, lambda: store.claim("g", "x", "a", None), lambda: store.transaction().__enter__()):
        with pytest.raises(ConnectionClosedError, match="are closed"):
            use()


def test_a_transaction_is_used_inside_its_block_only(store: SqliteCheckpoints) -> None:
    with store.transaction() as tx:
        pass
    with pytest.raises(TransactionError, match="not open"):
        tx.connection.execute("SELECT 1")
    with pytest.raises(TransactionError, match="not open"):
        tx.save(lease_on(store), KEY, change(1))


def test_what_may_be_forgotten_is_forgotten(store: SqliteCheckpoints) -> None:
    lease = lease_on(store)
    for number in range(10):
        store.save(lease, KEY, change(number))
    cut = replace(change(10), forget_handled_before_ms=NOW_MS + 8, forget_history_before_ms=NOW_MS + 8)
    store.save(lease, KEY, cut)
    assert [line.first for line in store.history(KEY)] == [8, 9, 10]
    ids = [f"id-{number}" for number in range(11)]
    assert store.handled(KEY.group, KEY.topic, ids) == {"id-8", "id-9", "id-10"}


def effects(store: SqliteCheckpoints) -> list[int]:
    with store.transaction() as tx:
        return [row[0] for row in tx.connection.execute("SELECT x FROM effect").fetchall()]


def thread_raises(error: type[Exception], function: Callable[[], object]) -> None:
    """The function raises this in a thread of its own."""
    caught: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as raised:
            caught.append(raised)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert [type(each) for each in caught] == [error]
