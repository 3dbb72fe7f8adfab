"""Damaging what a store has stored, behind its back, and opening the stores of tests."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

import psycopg

from penstock.abc import CheckpointStore
from penstock.checkpoints.objects.files import FileCheckpoints
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.checkpoints.postgres.store import PostgresCheckpoints
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.model import CheckpointKey
from tests.postgres import shared_postgres

POSTGRES_URL: Final = "PENSTOCK_TEST_POSTGRES_URL"
"""How child processes hear which server their parent has started."""


def open_sqlite(folder: Path) -> SqliteCheckpoints:
    return SqliteCheckpoints(folder / "checkpoints.db")


def open_file(folder: Path) -> FileCheckpoints:
    return FileCheckpoints(folder)


def open_small_files(folder: Path) -> FileCheckpoints:
    """One that writes, merges and removes parts all the time."""
    store = FileCheckpoints(folder)
    store._objects.new_bytes = 150
    store._objects.inline_bytes = 400
    return store


def open_postgres() -> PostgresCheckpoints:
    if POSTGRES_URL not in os.environ:
        os.environ[POSTGRES_URL] = shared_postgres().fresh_database()
    return PostgresCheckpoints(os.environ[POSTGRES_URL])


def spoil_sqlite(store: SqliteCheckpoints, key: CheckpointKey) -> None:
    with sqlite3.connect(store.path) as connection:
        _spoil_row(connection, "?", key)
    connection.close()


def spoil_memory(store: SqliteCheckpoints, key: CheckpointKey) -> None:
    with store.transaction() as transaction:
        _spoil_row(transaction.connection, "?", key)


def spoil_postgres(_: PostgresCheckpoints, key: CheckpointKey) -> None:
    with psycopg.connect(os.environ[POSTGRES_URL]) as connection:
        _spoil_row(connection, "%s", key)


def spoil_version(store: CheckpointStore, key: CheckpointKey) -> None:
    """Flip a bit of the version that a manifest refers to, wherever it is; the manifest itself stays whole."""
    assert isinstance(store, VersionedCheckpoints)
    now = store._manifests.read(key.group, key.lease_name)
    assert now is not None
    if now.manifest.part:
        data = store._objects.get_part(key.group, key.lease_name, now.manifest.part)
        assert data is not None
        store._objects.put_part(key.group, key.lease_name, now.manifest.part, with_flipped_bit(data))
    else:
        spoilt = now.manifest.changed(inline=with_flipped_bit(now.manifest.inline))
        assert store._manifests.swap(key.group, key.lease_name, now, spoilt)


def with_flipped_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _spoil_row(connection: Any, mark: str, key: CheckpointKey) -> None:
    where = f'WHERE "group" = {mark} AND topic = {mark} AND partition = {mark}'
    values = (key.group, key.topic, key.partition)
    (data,) = connection.execute(f"SELECT data FROM penstock_checkpoint {where}", values).fetchone()
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 0x10
    connection.execute(f"UPDATE penstock_checkpoint SET data = {mark} {where}", (bytes(damaged), *values))
