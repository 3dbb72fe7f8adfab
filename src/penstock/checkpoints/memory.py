"""Checkpoints in memory: for tests, and for programs that may begin anew each time."""

from __future__ import annotations

from penstock.abc import Feature, Features
from penstock.checkpoints.sqlite import SqliteCheckpoints
from penstock.checkpoints.sqlite_database import MEMORY


class MemoryCheckpoints(SqliteCheckpoints):
    """A SQLite database that has no file: it does all that one with a file does, transactions too, but is gone with
    the object. Threads share it; processes cannot."""

    def __init__(self) -> None:
        super().__init__(MEMORY)

    @property
    def features(self) -> Features:
        return super().features - {Feature.DURABLE}
