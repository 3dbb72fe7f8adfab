"""Consumers in processes of their own that are killed, for tests that run another one after them.

Each process makes the same stream, record for record; checkpoints are in SQLite, and what handlers did is in a file,
written before they return.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming import Consumer
from penstock.model import NewRecord, Record
from penstock.streams.memory import MemoryStream
from penstock.testing.crashing import CrashingStore, die
from tests.forking import FORKING

GROUP: Final = "group"
DIES: Final = -9
_SESSION_S: Final = 0.15


def in_a_process(work: Callable[..., None], *arguments: object) -> int:
    """Its exit code: 0, or -9 when it was killed."""
    process = FORKING.Process(target=work, args=arguments)
    process.start()
    process.join(30)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"{work.__name__}{arguments} did not come to an end within 30 s")
    return process.exitcode


def numbers(count: int, keys: int = 1) -> MemoryStream:
    streams = MemoryStream(partitions=1)
    streams.open_topic("orders").append(
        [NewRecord("orders", str(number).encode(), str(number % keys).encode()) for number in range(count)]
    )
    return streams


def checkpoints(folder: Path) -> SqliteCheckpoints:
    return SqliteCheckpoints(folder / "checkpoints.db")


@dataclass(frozen=True)
class Notes:
    """What handlers have done, in the order in which they did it."""

    folder: Path

    def add(self, number: int) -> None:
        with open(self.folder / "handled.txt", "a", encoding="ascii") as file:
            file.write(f"{number}\n")

    def read(self) -> list[int]:
        path = self.folder / "handled.txt"
        return [int(line) for line in path.read_text("ascii").split()] if path.exists() else []


def handle(folder: Path, count: int, keys: int, dies_at: int | None, dies_after_save: int | None, options: Any) -> None:
    """Handle all records; die in the handler of one of them, or right after the nth save of the checkpoint."""
    store: Any = checkpoints(folder)
    if dies_after_save is not None:
        store = CrashingStore(store, "save", nth=dies_after_save, after=True)
    app = App(numbers(count, keys), group=GROUP, checkpoints=store)
    notes = Notes(folder)

    @app.handle("orders", end="latest", session_timeout_s=_SESSION_S, **options)
    def note(record: Record) -> None:
        number = int(record.value or b"")
        if number == dies_at:
            die()
        notes.add(number)

    app.run()
    os._exit(0)


def finish_some(folder: Path, count: int, unfinished: frozenset[int]) -> None:
    """Take all records, finish all but some, save that, and die."""
    consumer = Consumer(
        numbers(count),
        "orders",
        group=GROUP,
        checkpoints=checkpoints(folder),
        in_flight=2 * count,
        partition_in_flight=2 * count,
    )
    taken = 0
    while taken < count:
        records = consumer.poll(timeout_s=20)
        assert records, f"only {taken} of {count} came"
        taken += len(records)
        for record in records:
            if record.offset not in unfinished:
                consumer.done(record)
    consumer.commit()
    die()
