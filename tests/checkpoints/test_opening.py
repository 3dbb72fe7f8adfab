"""A URL leads to the store it means, and what is wrong with one is said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.abc import Feature
from penstock.checkpoints import STORE_URLS, open_store
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.checkpoints.objects.files import FileCheckpoints
from penstock.checkpoints.postgres.store import PostgresCheckpoints
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.errors import ConfigError
from tests.postgres import shared_postgres


def test_a_sqlite_url_opens_a_file_and_makes_its_folder(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/new/folder/x.db")
    assert isinstance(store, SqliteCheckpoints)
    assert (tmp_path / "new" / "folder" / "x.db").exists()
    store.close()


def test_a_sqlite_url_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:./x.db").close()
    assert (tmp_path / "x.db").exists()


def test_a_sqlite_url_takes_settings(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/x.db?synchronous=full&busy_timeout_s=2.5")
    assert isinstance(store, SqliteCheckpoints)
    with store.transaction() as tx:
        assert tx.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert tx.connection.execute("PRAGMA busy_timeout").fetchone() == (2500,)
    store.close()


def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    store = open_store(f"file:{tmp_path}/x")
    assert isinstance(store, FileCheckpoints)
    assert Feature.TRANSACTIONS not in store.features
    store.close()


def test_memory_opens_a_store_of_its_own_each_time() -> None:
    one, two = open_store("memory:"), open_store("memory:")
    one.claim("g", "x", "a", None)
    assert isinstance(one, MemoryCheckpoints)
    assert Feature.DURABLE not in one.features
    assert list(two.groups()) == []


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_postgres_url_opens_a_database(scheme: str) -> None:
    url = shared_postgres().fresh_database().replace("postgresql:", f"{scheme}:")
    store = open_store(url)
    assert isinstance(store, PostgresCheckpoints)
    store.close()


def test_a_store_is_given_back_as_it_is() -> None:
    store = MemoryCheckpoints()
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://host/db", "'mysql' is not a kind of checkpoint store"),
        ("./x.db", "does not name a checkpoint store"),
        ("sqlite:", "names no file"),
        ("file:", "names no file"),
        ("sqlite:///var/x.db", "right after the colon"),
        ("sqlite:x.db?sync=FULL", "no setting 'sync'"),
        ("sqlite:x.db?synchronous=OFF", "NORMAL or FULL"),
        ("sqlite:x.db?busy_timeout_s=long", "number of seconds"),
        ("sqlite:x.db?busy_timeout_s=0", "must be positive"),
        ("sqlite:x.db?synchronous", "the query is invalid"),
        ("memory:x", "takes no path"),
        ("postgresql://u:secret@h/db?nonsense=1", "is invalid"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_lists_what_can_be_written() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("etcd:x")
    assert all(form in str(caught.value) for form in STORE_URLS)


def test_something_that_is_no_store_is_refused() -> None:
    nonsense: Any = 42
    with pytest.raises(ConfigError, match="42 is not a checkpoint store"):
        open_store(nonsense)
