"""An app on an embedded log, or on Kafka, in a process of its own, that its parent kills whenever it likes.

Each way of consuming that it is told to use handles the same topic of records, in a group of its own, and leaves a
trace of each: a line in a file, a row in a table, a copy in another topic.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.app import App
from penstock.consuming import Context, Retry
from penstock.errors import Reject
from penstock.model import Record
from tests.forking import FORKING

COPY: Final = "copy"
"""Into another topic, exactly once, in Kafka's transactions."""
NOTE: Final = "note"
"""At least once, in the order of the keys."""
GLANCE: Final = "glance"
"""At most once."""
ROW: Final = "row"
"""Into a table, exactly once, with the checkpoint in the same database."""
SHARE: Final = "share"
"""At least once, by members that divide single records."""
REFUSE: Final = "refuse"
"""At least once; what `is_refused` goes to the dead letters, until it is mended."""
WAYS: Final = (COPY, NOTE, GLANCE, ROW, SHARE, REFUSE)

SESSION_S: Final = 6.0
REFUSED_EACH: Final = 25


@dataclass(frozen=True)
class Members:
    """The processes of one app: all of them leave their traces in one folder."""

    url: str
    folder: Path
    ways: Sequence[str] = (COPY, NOTE)
    session_s: float = SESSION_S
    prefix: str = ""
    """Of its topics and groups."""

    @property
    def source(self) -> str:
        """The topic that is consumed."""
        return f"{self.prefix}numbers"

    @property
    def copies(self) -> str:
        return f"{self.prefix}copies"

    def group(self, way: str) -> str:
        return f"{self.prefix}{way}"

    def prepare(self) -> None:
        """Create the table."""
        with sqlite3.connect(self.database) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE IF NOT EXISTS rows (value TEXT)")

    def start(self) -> BaseProcess:
        process = FORKING.Process(target=_run, args=(self,))
        process.start()
        return process

    @property
    def database(self) -> Path:
        return self.folder / "rows.db"

    def output(self) -> str:
        """What the processes have logged."""
        log = self.folder / "app.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def stacks(self) -> str:
        """Where the threads of the processes were when they were sent SIGUSR1."""
        return "\n".join(path.read_text() for path in self.folder.glob("*.stacks"))

    def mend(self) -> None:
        """From now on, what was refused is handled."""
        (self.folder / "mended").touch()

    def calls_bytes(self, way: str) -> int:
        """Grows with each call of a handler."""
        notes = self.folder / way
        return notes.stat().st_size if notes.exists() else 0

    def seen(self, way: str, stream: penstock.Connection) -> Counter[bytes]:
        """How often each value has left a trace."""
        if way == COPY:
            return Counter(record.value or b"" for record in stream.read(self.copies))
        if way == ROW:
            with sqlite3.connect(self.database) as db:
                return Counter(str(value).encode() for (value,) in db.execute("SELECT value FROM rows"))
        notes = self.folder / way
        return Counter(notes.read_bytes().splitlines() if notes.exists() else [])


def is_refused(value: bytes) -> bool:
    return int(value.split()[-1]) % REFUSED_EACH == 0


def _run(members: Members) -> None:
    logging.basicConfig(
        filename=members.folder / "app.log", format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    )
    stacks = open(members.folder / f"{os.getpid()}.stacks", "w")  # noqa: SIM115 - until the process ends
    faulthandler.register(signal.SIGUSR1, stacks)
    app = App(members.url, group="app")
    for way in members.ways:
        _declare(app, way, members)
    app.run()


def _declare(app: App, way: str, members: Members) -> None:
    notes = os.open(members.folder / way, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    handle = functools.partial(
        app.handle,
        members.source,
        group=members.group(way),
        commit_interval_s=0.3,
    )
    member: dict[str, Any] = {"session_timeout_s": members.session_s}
    if way != GLANCE:  # at-most-once, which never retries
        member["retry"] = Retry(20, first_delay_s=0.01, max_delay_s=0.1)

    def note(value: bytes) -> None:
        os.write(notes, value + b"\n")

    def copy(value: bytes) -> bytes:
        note(value)
        return value

    def add_row(record: Record, ctx: Context) -> None:
        note(record.value or b"")
        with ctx.transaction() as db:
            db.execute("INSERT INTO rows VALUES (?)", ((record.value or b"").decode(),))

    def refuse(value: bytes) -> None:
        if is_refused(value) and not (members.folder / "mended").exists():
            raise Reject("not yet")
        note(value)

    match way:
        case "copy":
            handle(to=members.copies, guarantee="exactly-once", **member)(copy)
        case "note":
            handle(order="key", workers=2, **member)(note)
        case "glance":
            handle(guarantee="at-most-once", **member)(note)
        case "row":
            handle(guarantee="exactly-once", checkpoints=f"sqlite:{members.database}", **member)(add_row)
        case "share":
            handle(shared=True, workers=4, visibility_s=10.0, retry=member["retry"])(note)
        case "refuse":
            handle(**member)(refuse)
        case _:
            raise ValueError(way)
