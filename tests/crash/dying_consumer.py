"""A consumer in a process of its own, which is killed at a named step, or whenever its parent likes.

What it reads is made anew by each process, record for record the same: so the stream costs nothing, and all that must
survive is what the consumer itself keeps: checkpoints, dead letters, effects.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from penstock.app import App
from penstock.checkpoints.postgres import PostgresCheckpoints
from penstock.checkpoints.sqlite import SqliteCheckpoints
from penstock.consuming import Context, Retry
from penstock.consuming.dead_letters.sqlite import SqliteDeadLetters
from penstock.model import LetterFilter, NewRecord, Record
from penstock.streams.memory import MemoryStreams
from penstock.testing.crashing import CrashPoint, die
from penstock.testing.intercepted_letters import InterceptedLetters
from penstock.testing.intercepted_store import InterceptedStore
from penstock.testing.intercepted_stream import InterceptedStreams

RECORDS: Final = 60
PARTITIONS: Final = 2
POISONED: Final = frozenset({7, 33})
"""Fail always, and end with the dead letters."""
MOODY: Final = frozenset({5, 20, 41})
"""Fail at their first attempt in a process."""
GROUP: Final = "group"

_FORKING: Final = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["tests.crash.dying_consumer"])


@dataclass(frozen=True)
class Death:
    """Where a process dies: at the nth call of an operation, before it or after it. "handler" is one of them."""

    at: str
    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.at} number {self.nth}"


@dataclass(frozen=True)
class Run:
    """One process of a consumer."""

    folder: Path
    guarantee: str
    order: str
    workers: int
    death: Death | None = None
    postgres: str | None = None
    """Where checkpoints and effects are kept, if not in SQLite."""

    @property
    def database(self) -> Path:
        return self.folder / "orders.db"

    @property
    def calls(self) -> Path:
        return self.folder / "calls.txt"

    @property
    def steps(self) -> Path:
        return self.folder / "steps.txt"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.postgres is not None:
            with psycopg.connect(self.postgres) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS effects (number INTEGER)")
            return
        with sqlite3.connect(self.database) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE IF NOT EXISTS effects (number INTEGER)")

    def start(self) -> multiprocessing.process.BaseProcess:
        process = _FORKING.Process(target=_consume, args=(self,))
        process.start()
        return process

    def finish(self) -> int:
        """Run it to its end, whatever that is; gives the exit code, -9 for a process that was killed."""
        process = self.start()
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{self} did not come to an end within 60 s")
        return process.exitcode

    def called(self) -> Counter[int]:
        """How often the handler has done its work for each record."""
        if not self.calls.exists():
            return Counter()
        return Counter(int(line) for line in self.calls.read_text().split())

    def effects(self) -> Counter[int]:
        """The rows that handlers wrote in transactions."""
        if self.postgres is not None:
            with psycopg.connect(self.postgres) as connection:
                return Counter(number for (number,) in connection.execute("SELECT number FROM effects"))
        with sqlite3.connect(self.database) as db:
            return Counter(number for (number,) in db.execute("SELECT number FROM effects"))

    def letters(self, error_kind: str) -> Counter[int]:
        letters = SqliteDeadLetters(self.folder / "letters.db")
        found = letters.browse(LetterFilter(error_kind=error_kind), limit=1000)
        letters.close()
        return Counter(int(letter.record.value or b"") for letter in found)

    def excused(self) -> Counter[int]:
        """Good records that were given up by right: too many processes died with them in hand, as they do here, or, of
        the moody ones, too many died after the first attempt."""
        moody = self.letters("ValueError")
        return self.letters("WorkerDiedError") + Counter({number: moody[number] for number in MOODY if moody[number]})


def _streams() -> MemoryStreams:
    streams = MemoryStreams(partitions=PARTITIONS)
    streams.create_topic("orders", PARTITIONS)
    stream = streams.stream("orders")
    for number in range(RECORDS):
        record = NewRecord("orders", str(number).encode(), str(number % 7).encode(), partition=number % PARTITIONS)
        stream.append([record])[0].result(5)
    return streams


def _consume(run: Run) -> None:
    death = run.death
    in_handler = death is not None and death.at == "handler"
    point = CrashPoint(None) if death is None or in_handler else CrashPoint(death.at, death.nth, death.after)
    kept = SqliteCheckpoints(run.database) if run.postgres is None else PostgresCheckpoints(run.postgres)
    store = InterceptedStore(kept, point)
    insert = f"INSERT INTO effects VALUES ({'?' if run.postgres is None else '%s'})"
    letters = InterceptedLetters(SqliteDeadLetters(run.folder / "letters.db"), point)
    app = App(InterceptedStreams(_streams(), point), group=GROUP, checkpoints=store)
    attempts: Counter[int] = Counter()
    calls = os.open(run.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(record: Record, ctx: Context) -> None:
        number = int(record.value or b"")
        attempts[number] += 1
        here = in_handler and death is not None and sum(attempts.values()) == death.nth
        if here and death is not None and not death.after:
            die()
        if number in POISONED or (number in MOODY and attempts[number] == 1):
            raise ValueError(f"{number} does not like it")
        os.write(calls, f"{number}\n".encode())
        if run.guarantee == "exactly-once":
            with ctx.transaction() as db:
                db.execute(insert, (number,))
        if here:
            die()

    app.handle(
        "orders",
        guarantee=run.guarantee,
        order=run.order,
        workers=run.workers,
        retry=Retry(5, first_delay_s=0.001, max_delay_s=0.005),
        dead_letters=letters,
        end="latest",
        session_timeout_s=0.15,
        commit_interval_s=0.005,
        chunk=4,
        in_flight=16,
    )(work)
    app.run()
    run.steps.write_text(" ".join(f"{name}={count}" for name, count in point.steps.items()))
    sys.stdout.flush()
    os._exit(0)
