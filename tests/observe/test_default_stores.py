"""The checkpoint store that goes with a stream is found, and looking creates none."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

import penstock
from penstock.checkpoints.opening import is_absent, open_store
from penstock.errors import ConfigError
from penstock.model import Change, Checkpoint, CheckpointKey
from penstock.model.pointer_forms import pointer_value
from penstock.observe.library_groups import check_given, default_store, no_groups_text
from penstock.observe.stream_observer import StreamObserver
from penstock.streams.connecting import pointer_text_at
from tests.postgres import shared_postgres

KEY = CheckpointKey("bill", "orders", 0)


def save_checkpoint(url: str) -> None:
    store = open_store(url)
    try:
        lease = store.claim(KEY.group, KEY.lease_name, "worker", None)
        assert lease is not None
        store.save(lease, KEY, Change(Checkpoint(0, 0)))
    finally:
        store.close()


def groups_of(stream: penstock.Connection, checkpoints: str | None = None) -> list[str]:
    with contextlib.closing(StreamObserver(stream, checkpoints=checkpoints)) as observer:
        snapshot = observer.look()
    assert snapshot.problem is None, snapshot.problem
    return list(snapshot.groups)


def tables_of(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_stream_in_sqlite_gets_no_tables_by_looking_and_its_store_is_found(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with penstock.connect(f"sqlite:{path}") as stream:
        stream.create_topic("orders")
        before = tables_of(path)
        assert groups_of(stream) == []
        assert check_given(stream, None) == []
        assert tables_of(path) == before
        store = default_store(stream)
        assert store is not None
        save_checkpoint(store)
        assert groups_of(stream) == ["bill"]
        assert check_given(stream, None) == [store]


def test_a_looker_sees_a_store_that_appears_while_it_looks(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    with penstock.connect(f"file:{tmp_path / 'records'}") as stream:
        stream.create_topic("orders")
        with contextlib.closing(StreamObserver(stream)) as observer:
            assert observer.look().groups == {}
            store = default_store(stream)
            assert store is not None
            assert is_absent(store)
            save_checkpoint(store)
            assert list(observer.look().groups) == ["bill"]


def test_a_database_gets_no_tables_by_looking() -> None:
    url = shared_postgres().fresh_database()
    assert is_absent(url)
    assert is_absent(url)  # also now
    save_checkpoint(url)
    assert not is_absent(url)
    with penstock.connect(url) as stream:
        stream.create_topic("orders")
        assert groups_of(stream) == ["bill"]


def test_a_store_that_was_named_and_does_not_exist_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "other.db"
    sqlite3.connect(empty).close()
    with penstock.connect(f"sqlite:{tmp_path / 'records.db'}") as stream:
        for named in (f"sqlite:{empty}", f"sqlite:{tmp_path / 'missing.db'}", f"file:{tmp_path / 'missing'}"):
            with pytest.raises(ConfigError, match="there are no checkpoints in"):
                check_given(stream, named)
        assert "An app that reads" in no_groups_text(stream, None)
    assert not (tmp_path / "missing.db").exists()


def test_pointers_are_written_as_their_system_does_without_connecting() -> None:
    pointer = (1_526_919_030_474 << 64) + 55
    assert pointer_text_at("redis://127.0.0.1:1/0")(pointer) == "1526919030474-55"
    assert pointer_text_at("kafka://127.0.0.1:1")(42) == "42"
    assert pointer_value(pointer, pointer_text_at("redis://127.0.0.1:1/0")) == "1526919030474-55"
    assert pointer_value(42) == 42
    assert pointer_value(2**53 + 1) == str(2**53 + 1)
