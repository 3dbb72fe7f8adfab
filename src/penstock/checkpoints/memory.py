"""Checkpoints in memory: for tests, and for programs that may start over each time."""

from __future__ import annotations

from penstock.abc import Feature, Features
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.databases.sqlite import MEMORY


class MemoryCheckpoints(SqliteCheckpoints):
    """An in-memory SQLite database with all features of one in a file, including transactions. Threads share it;
    processes cannot."""

    features: Features = SqliteCheckpoints.features - {Feature.DURABLE}

    def __init__(self) -> None:
        super().__init__(MEMORY)
