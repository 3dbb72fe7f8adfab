"""Checkpoints in a SQLite database: the default. One file for all processes of one machine."""

from __future__ import annotations

from penstock.checkpoints.sqlite.store import SqliteCheckpoints

__all__ = ["SqliteCheckpoints"]
