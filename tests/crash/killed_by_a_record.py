"""A consumer in a process of its own, one of whose records kills whoever handles it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.loop.checkpointing import CheckpointSaver
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.model import DeadLetter, DeadLetterFilter, NewRecord, Ordering, Record
from penstock.streams.memory import MemoryStream
from penstock.testing.crashing import die
from tests.forking import FORKING

KILLER: Final = 11
KEYS: Final = 7
DEATHS: Final = 2 + 1 + 5
"""Two before records are suspected, one in a group of them, and five of the record alone."""


@dataclass(frozen=True)
class Run:
    folder: Path
    in_pairs: bool = False
    """Whether each odd number has the same idempotency key as the one behind it."""
    records: int = 30
    killer: int = KILLER
    order: str = "partition"
    url: str | None = None
    """A stream whose topic `orders` is copied to `copies`, exactly once; None: records in memory, at least once."""

    def finish(self) -> int:
        process = FORKING.Process(target=_consume, args=(self,))
        process.start()
        process.join(60)
        assert process.exitcode is not None
        return process.exitcode

    def finish_over_deaths(self) -> int:
        """Start it again until it comes to its end, and give how often it died."""
        deaths = 0
        while self.finish() == -9:
            deaths += 1
            assert deaths < 20, "it is never found"
        return deaths

    def handled(self) -> list[int]:
        return [int(line) for line in (self.folder / "handled.txt").read_text().split()]

    def saves(self) -> int:
        """How often all of them have saved."""
        return len((self.folder / "saves.txt").read_text())

    def letters(self) -> list[DeadLetter]:
        letters = SqliteDeadLetters(self.folder / "letters.db")
        found = list(letters.browse(DeadLetterFilter()))
        letters.close()
        return found


def _pair(record: Record) -> str:
    assert record.value is not None
    return str((int(record.value) + 1) // 2)


def numbers(count: int) -> list[NewRecord]:
    return [NewRecord("orders", str(number).encode(), str(number % KEYS).encode()) for number in range(count)]


def _counted(save: Callable[..., None], path: Path) -> Callable[..., None]:
    saves = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def counted(saver: CheckpointSaver, assigned: AssignedPartition, **options: bool) -> None:
        os.write(saves, b"s")
        save(saver, assigned, **options)

    return counted


def _consume(run: Run) -> None:
    folder = run.folder
    CheckpointSaver.save = _counted(CheckpointSaver.save, folder / "saves.txt")  # type: ignore[method-assign]
    options: dict[str, Any] = {"dead_letters": SqliteDeadLetters(folder / "letters.db"), "commit_interval_s": 60}
    if run.url is None:
        streams = MemoryStream(partitions=1)
        streams.open_topic("orders").append(numbers(run.records))
        app = App(streams, group="group", checkpoints=SqliteCheckpoints(folder / "checkpoints.db"))
        options |= {"session_timeout_s": 0.15, "idempotency_key": _pair if run.in_pairs else None}
    else:
        app = App(run.url, group="group")
        options |= {"to": "copies", "guarantee": "exactly-once", "session_timeout_s": 1}
    handled = os.open(folder / "handled.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(value: bytes) -> None:
        if int(value) == run.killer:
            die()
        os.write(handled, value + b"\n")

    def copy(value: bytes) -> bytes:
        handle(value)
        return value

    workers = 1 if run.order == "partition" else 3
    declare = app.handle("orders", end="latest", order=Ordering(run.order), workers=workers, **options)
    declare(handle if run.url is None else copy)
    app.run()
    os._exit(0)
