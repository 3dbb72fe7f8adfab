"""A faulty part without a script keeps all promises of the part that it wraps."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.dead_letters.file import FileDeadLetters
from penstock.testing import FaultyLetters, FaultyStore, FaultyStream, MemoryStream, conformance


def open_stream() -> FaultyStream:
    return FaultyStream(MemoryStream())


def open_store(folder: Path) -> FaultyStore:
    return FaultyStore(SqliteCheckpoints(folder / "checkpoints.db"))


def open_letters(folder: Path) -> FaultyLetters:
    return FaultyLetters(FileDeadLetters(folder / "letters"))


TestFaultyStreams = conformance.stream(open_stream)
# What is left after a kill is shown for the stores themselves.
TestFaultyStore = conformance.checkpoint_store(open_store, MemoryCheckpoints().features)
TestFaultyLetters = conformance.dead_letters(open_letters, frozenset())
