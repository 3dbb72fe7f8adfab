"""Dead letters in SQLite: the file that others use, too, and files that are none."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from penstock.checkpoints.sqlite import SqliteCheckpoints
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import ConfigError, ConnectionClosedError, StoreUnavailableError
from penstock.model import DeadLetterFilter, Record
from tests.dead_letters.letters import given_up

LETTER = given_up(Record("orders", 1, 2**80, b"key", b"value"))


def test_letters_can_be_asked_for_in_sql(tmp_path: Path) -> None:
    letters = SqliteDeadLetters(tmp_path / "x.db")
    letters.put([LETTER])
    database = sqlite3.connect(tmp_path / "x.db")
    row = database.execute(
        "SELECT consumer_group, topic, topic_partition, pointer, record_value, error, state FROM penstock_dead_letters"
    ).fetchone()
    assert row == ("billing", "orders", 1, str(2**80), b"value", "ValueError: no", "waiting")
    database.close()
    letters.close()


def test_other_tables_stand_beside_them(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE mine (x)")
    letters = SqliteDeadLetters(tmp_path / "x.db")
    letters.put([LETTER])
    letters.close()
    assert database.execute("SELECT count(*) FROM mine").fetchone() == (0,)
    database.close()


def test_a_database_that_somebody_holds_is_told(tmp_path: Path) -> None:
    letters = SqliteDeadLetters(tmp_path / "x.db", busy_timeout_s=0.05)
    holder = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="database is locked"):
        letters.put([LETTER])
    assert letters.count(DeadLetterFilter()) == 0, "looking is still possible"
    holder.execute("ROLLBACK")
    letters.put([LETTER])
    assert letters.count(DeadLetterFilter()) == 1
    holder.close()
    letters.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("This is a letter, but no database. " * 100, "utf-8")
    with pytest.raises(ConfigError, match="is not a SQLite database"):
        SqliteDeadLetters(tmp_path / "x.db")
    with pytest.raises(StoreUnavailableError, match="SQLite cannot use this file"):
        SqliteDeadLetters(tmp_path)
    with pytest.raises(StoreUnavailableError, match="folder cannot be created"):
        SqliteDeadLetters(tmp_path / "x.db" / "y.db")


def test_closed_letters_say_so(tmp_path: Path) -> None:
    letters = SqliteDeadLetters(tmp_path / "x.db")
    letters.close()
    with pytest.raises(ConnectionClosedError, match="are closed: open them again"):
        letters.put([LETTER])


def test_letters_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    SqliteDeadLetters(tmp_path / "x.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("UPDATE penstock_dead_letters_schema SET version = 99")
    with pytest.raises(ConfigError, match=r"dead letters of version 99.*supports only version 1"):
        SqliteDeadLetters(tmp_path / "x.db")


def test_letters_from_before_there_were_versions_are_kept(tmp_path: Path) -> None:
    with contextlib.closing(SqliteDeadLetters(tmp_path / "x.db")) as letters:
        letters.put([LETTER])
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("DROP TABLE penstock_dead_letters_schema")
    with contextlib.closing(SqliteDeadLetters(tmp_path / "x.db")) as letters:
        assert letters.count(DeadLetterFilter()) == 1


def test_checkpoints_and_letters_share_a_file_whichever_came_first(tmp_path: Path) -> None:
    with contextlib.closing(SqliteDeadLetters(tmp_path / "x.db")) as letters, SqliteCheckpoints(tmp_path / "x.db"):
        letters.put([LETTER])
    with SqliteCheckpoints(tmp_path / "y.db"), contextlib.closing(SqliteDeadLetters(tmp_path / "y.db")) as letters:
        letters.put([LETTER])
        assert letters.count(DeadLetterFilter()) == 1
