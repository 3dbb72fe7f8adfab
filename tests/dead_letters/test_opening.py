"""What a user writes, and the dead letters that are meant."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.dead_letters import open_dead_letters
from penstock.dead_letters.file import FileDeadLetters
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.errors import ConfigError, MissingExtraError
from penstock.streams.memory import MemoryStream


def test_a_plain_name_is_a_topic() -> None:
    letters = open_dead_letters("orders.dlq", MemoryStream())
    assert isinstance(letters, StreamDeadLetters)
    assert letters.topic == "orders.dlq"


@pytest.mark.parametrize(
    ("written", "kind", "path"),
    [
        ("sqlite:./x.db", SqliteDeadLetters, "x.db"),
        ("sqlite:sub/x.db", SqliteDeadLetters, "sub/x.db"),
        ("SQLite:x.db", SqliteDeadLetters, "x.db"),
        ("file:./letters.jsonl", FileDeadLetters, "letters.jsonl"),
        ("file:letters", FileDeadLetters, "letters/letters.jsonl"),
    ],
)
def test_a_path_is_a_place_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, kind: type, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    letters = open_dead_letters(written)
    assert isinstance(letters, kind)
    assert (tmp_path / path).exists()
    letters.close()


@pytest.mark.parametrize("written", ["sqlite:{}/x.db", "sqlite://{}/x.db", "sqlite:////{}/x.db"])
def test_slashes_are_written_in_many_ways(tmp_path: Path, written: str) -> None:
    open_dead_letters(written.format(tmp_path)).close()
    assert (tmp_path / "x.db").exists()


def test_an_object_is_taken_as_it_is(tmp_path: Path) -> None:
    letters = SqliteDeadLetters(tmp_path / "x.db")
    assert open_dead_letters(letters) is letters
    letters.close()


@pytest.mark.parametrize(
    "written", ["", ".", "a topic", "mongodb://x", "sqlite:", "file:", "file:///", "postgresql:x", "a/b"]
)
def test_what_names_no_place_is_refused_with_the_forms(written: str) -> None:
    with pytest.raises(ConfigError, match=r"does not name dead letters: use the name of a topic .*sqlite:PATH"):
        open_dead_letters(written, MemoryStream())


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="it has no put, browse"):
        open_dead_letters(42, MemoryStream())  # type: ignore[arg-type]


def test_a_topic_needs_a_stream() -> None:
    with pytest.raises(ConfigError, match="no stream is given"):
        open_dead_letters("orders.dlq")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for module in ("penstock.databases.postgres", "penstock.dead_letters.postgres"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[postgres\]'"):
        open_dead_letters("postgresql://127.0.0.1/x")
