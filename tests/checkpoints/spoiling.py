"""Damaging what a store has stored, behind its back, and opening the stores of tests."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

import psycopg

from penstock.checkpoints.file.store import FileCheckpoints
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
    """One that begins a new journal all the time."""
    return FileCheckpoints(folder, rotate_bytes=500)


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


def spoil_file(store: FileCheckpoints, key: CheckpointKey) -> None:
    """Flip a bit of the first change; a good one follows, so this is no write that was cut short."""
    (journal,) = [
        path for path in store.folder.glob("groups/*/partitions/*/journal") if key.group in str(path.parents[2].name)
    ]
    flip(journal, 60)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def _spoil_row(connection: Any, mark: str, key: CheckpointKey) -> None:
    where = f'WHERE "group" = {mark} AND topic = {mark} AND partition = {mark}'
    values = (key.group, key.topic, key.partition)
    (data,) = connection.execute(f"SELECT data FROM penstock_checkpoint {where}", values).fetchone()
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 0x10
    connection.execute(f"UPDATE penstock_checkpoint SET data = {mark} {where}", (bytes(damaged), *values))
