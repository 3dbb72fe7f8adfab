"""A consumer in a process of its own, which is killed at a named step, or whenever its parent likes.

What it reads is made again by each process, record for record the same: so the stream costs nothing, and all that must
survive is what the consumer itself keeps: checkpoints, dead letters, effects.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import psycopg

from penstock.app import App
from penstock.checkpoints.postgres.store import PostgresCheckpoints
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming import Context, Retry
from penstock.consuming.options import DEFAULT_RETRY
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.model import DeadLetterFilter, Guarantee, NewRecord, Ordering, Record
from penstock.streams.memory import MemoryStream
from penstock.testing.crashing import CrashPoint, die
from penstock.testing.interception import InterceptedLetters, InterceptedStore, InterceptedStream
from tests.forking import FORKING
from tests.prove.deaths import Death
from tests.prove.judging import Judgement, Traces, judge_consumers

RECORDS: Final = 60
PARTITIONS: Final = 2
KEYS: Final = 7
POISONED: Final = frozenset({7, 33})
"""Fail always, and end with the dead letters."""
GOOD: Final = frozenset(range(RECORDS)) - POISONED
MOODY: Final = frozenset({5, 20, 41})
"""Fail at their first attempt in a process."""
GROUP: Final = "group"

FEW: Final = (1, 2)
MORE: Final = (1, 2, 5)
MANY: Final = (1, 2, 5, 12)
STEPS: Final = {
    "claim": FEW,
    "forget_lease": (1,),
    "handler": MANY,
    "leases": MORE,
    "load": FEW,
    "locate": MORE,
    "partitions": FEW,
    "poll": MANY,
    "put": FEW,
    "release": FEW,
    "renew": FEW,
    "state": FEW,
}
"""What every consumer does, and at which of its calls it dies: as many as a process that comes to its end has."""
STEPS_OF_SAVING: Final = {"save": MANY}
STEPS_OF_TRANSACTIONS: Final = {"begin": MANY, "transaction.save": MANY, "commit": MANY}
"""In place of saving, with exactly-once."""


def steps_of(guarantee: str) -> list[Death]:
    """Every named death that a consumer can die."""
    steps = STEPS | (STEPS_OF_TRANSACTIONS if guarantee == "exactly-once" else STEPS_OF_SAVING)
    return [Death(step, nth, after) for step, numbers in steps.items() for nth in numbers for after in (False, True)]


@dataclass(frozen=True)
class Run:
    """A consumer, of as many processes as it takes, one after the other."""

    folder: Path
    guarantee: str
    order: str
    workers: int
    postgres: str | None = None
    """Where checkpoints and effects are kept, if not in SQLite."""
    work_s: float = 0.0
    """How long a handler takes. With some time, kills at random moments find it at work more often than not."""

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

    def start(self, death: Death | None = None) -> BaseProcess:
        process = FORKING.Process(target=_consume, args=(self, death))
        process.start()
        return process

    def handled(self) -> list[int]:
        """The record of each call in which the handler has done its work, in turn."""
        if not self.calls.exists():
            return []
        return [int(line) for line in self.calls.read_text().split()]

    def effects(self) -> Counter[int]:
        """The rows that handlers wrote in transactions."""
        if self.postgres is not None:
            with psycopg.connect(self.postgres) as connection:
                return Counter(number for (number,) in connection.execute("SELECT number FROM effects"))
        with sqlite3.connect(self.database) as db:
            return Counter(number for (number,) in db.execute("SELECT number FROM effects"))

    def letters(self, *error_kinds: str) -> Counter[int]:
        """The dead letters of these kinds, or of every kind."""
        letters = SqliteDeadLetters(self.folder / "letters.db")
        found = [
            letter
            for kind in error_kinds or (None,)
            for letter in letters.browse(DeadLetterFilter(error_kind=kind), limit=1000)
        ]
        letters.close()
        return Counter(int(letter.record.value or b"") for letter in found)

    def given_up(self) -> Counter[int]:
        """Good records that were given up by right: too many processes died with them in hand, as they do here, or, of
        the moody ones, too many died after the first attempt."""
        died, raised = self.letters("WorkerDiedError"), self.letters("ValueError")
        moody = Counter({number: raised[number] for number in MOODY})
        return Counter({number: times for number, times in (died + moody).items() if number in GOOD})

    def judged(self) -> Judgement:
        """What became of the records; true of a consumer that has come to its end."""
        traces = Traces(self.handled(), self.effects(), self.letters(), self.given_up())
        lanes = {"partition": _partition, "key": _partition_and_key}
        return judge_consumers(self.guarantee, GOOD, POISONED, traces, lanes.get(self.order))


def _partition(number: int) -> int:
    return number % PARTITIONS


def _partition_and_key(number: int) -> tuple[int, int]:
    return number % PARTITIONS, number % KEYS


def _streams() -> MemoryStream:
    streams = MemoryStream(partitions=PARTITIONS)
    streams.create_topic("orders", PARTITIONS)
    stream = streams.open_topic("orders")
    for number in range(RECORDS):
        record = NewRecord("orders", str(number).encode(), str(number % KEYS).encode(), partition=number % PARTITIONS)
        stream.append([record])[0].result(5)
    return streams


def _consume(run: Run, death: Death | None) -> None:
    in_handler = death is not None and death.at == "handler"
    point = CrashPoint(None) if death is None or in_handler else CrashPoint(death.at, death.nth, death.after)
    kept = SqliteCheckpoints(run.database) if run.postgres is None else PostgresCheckpoints(run.postgres)
    store = InterceptedStore(kept, point)
    insert = f"INSERT INTO effects VALUES ({'?' if run.postgres is None else '%s'})"
    letters = InterceptedLetters(SqliteDeadLetters(run.folder / "letters.db"), point)
    app = App(InterceptedStream(_streams(), point), group=GROUP, checkpoints=store)
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
        threading.Event().wait(run.work_s)  # what a handler does takes time
        os.write(calls, f"{number}\n".encode())
        if run.guarantee == "exactly-once":
            with ctx.transaction() as db:
                db.execute(insert, (number,))
        if here:
            die()

    guarantee = Guarantee(run.guarantee)
    soon = Retry(5, first_delay_s=0.001, max_delay_s=0.005)
    app.handle(
        "orders",
        guarantee=guarantee,
        order=Ordering(run.order),
        workers=run.workers,
        retry=DEFAULT_RETRY if guarantee is Guarantee.AT_MOST_ONCE else soon,
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
