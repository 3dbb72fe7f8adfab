"""Dead letters in SQLite: the file that others use, too, and files that are none."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock.consuming.dead_letters.sqlite import SqliteDeadLetters
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model import LetterFilter, Record
from tests.consuming.dead_letters.letters import given_up

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
    with pytest.raises(StoreUnavailableError, match="cannot be used now: database is locked"):
        letters.put([LETTER])
    assert letters.count(LetterFilter()) == 0, "looking is still possible"
    holder.execute("ROLLBACK")
    letters.put([LETTER])
    assert letters.count(LetterFilter()) == 1
    holder.close()
    letters.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("This is a letter, but no database. " * 100, "utf-8")
    with pytest.raises(ConfigError, match="Is it an SQLite database"):
        SqliteDeadLetters(tmp_path / "x.db")
    with pytest.raises(ConfigError, match="no SQLite database can be opened"):
        SqliteDeadLetters(tmp_path)
    with pytest.raises(ConfigError, match="no SQLite database can be opened"):
        SqliteDeadLetters(tmp_path / "x.db" / "y.db")


def test_closed_letters_say_so(tmp_path: Path) -> None:
    letters = SqliteDeadLetters(tmp_path / "x.db")
    letters.close()
    with pytest.raises(ConfigError, match="were closed: open them again"):
        letters.put([LETTER])
