"""A consumer in a process of its own, one of whose records kills whoever handles it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.model import DeadLetter, DeadLetterFilter, NewRecord, Record
from penstock.streams.memory import MemoryStream
from penstock.testing.crashing import die
from tests.forking import FORKING

KILLER: Final = 11


@dataclass(frozen=True)
class Run:
    folder: Path
    in_pairs: bool = False
    """Whether each odd number has the same idempotency key as the one behind it."""

    def finish(self) -> int:
        process = FORKING.Process(target=_consume, args=(self.folder, self.in_pairs))
        process.start()
        process.join(60)
        assert process.exitcode is not None
        return process.exitcode

    def handled(self) -> list[int]:
        return [int(line) for line in (self.folder / "handled.txt").read_text().split()]

    def letters(self) -> list[DeadLetter]:
        letters = SqliteDeadLetters(self.folder / "letters.db")
        found = list(letters.browse(DeadLetterFilter()))
        letters.close()
        return found


def _pair(record: Record) -> str:
    assert record.value is not None
    return str((int(record.value) + 1) // 2)


def _consume(folder: Path, in_pairs: bool) -> None:
    streams = MemoryStream(partitions=1)
    streams.open_topic("orders").append([NewRecord("orders", str(number).encode()) for number in range(30)])
    app = App(streams, group="group", checkpoints=SqliteCheckpoints(folder / "checkpoints.db"))
    handled = os.open(folder / "handled.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.handle(
        "orders",
        dead_letters=SqliteDeadLetters(folder / "letters.db"),
        end="latest",
        session_timeout_s=0.15,
        commit_interval_s=60,
        idempotency_key=_pair if in_pairs else None,
    )
    def handle(value: bytes) -> None:
        if int(value) == KILLER:
            die()
        os.write(handled, value + b"\n")

    app.run()
    os._exit(0)
