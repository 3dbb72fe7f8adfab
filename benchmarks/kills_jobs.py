"""One job of killing: a consumer, or a producer with a spool, begun anew until its list of kills is used up.

Everything is decided beforehand: a job that was carried out once can be carried out again. What is killed, and how, is
that of the tests: `tests.crash.dying_consumer` and `tests.producing.killed_producer`.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import penstock
from penstock.prove.deaths import KILLED, Death, Ending, Kill
from penstock.prove.deaths import until_one_ends as until_a_process_ends
from penstock.prove.judging import Judgement
from tests.crash.dying_consumer import Run
from tests.postgres import shared_postgres
from tests.producing.killing import arrived, factory

SQLITE: Final = "SQLite"
POSTGRESQL: Final = "PostgreSQL"
SPOOL: Final = "spool"
RECORDS_OF_PRODUCERS: Final = (120, 500, 3_000)


@dataclass(frozen=True, slots=True)
class Kind:
    """Who is killed."""

    guarantee: str
    order: str
    keeps: str
    """Where that is which must survive."""

    @property
    def group(self) -> str:
        """What it is counted under."""
        who = "producers with a spool" if self.keeps == SPOOL else "consumers"
        return f"{who}, {self.guarantee}"

    def __str__(self) -> str:
        return f"{self.group}, order {self.order}, {self.keeps}"


@dataclass(frozen=True, slots=True)
class Job:
    number: int
    kind: Kind
    kills: tuple[Kill, ...]
    folder: Path
    broker: str
    """The URL that producers send to."""

    def carry_out(self) -> Outcome:
        """Do it; leaves its folder behind if a promise was broken."""
        self.folder.mkdir(parents=True)
        outcome = Outcome()
        (_kill_producers if self.kind.keeps == SPOOL else _kill_consumers)(self, outcome)
        if not outcome.broken:
            shutil.rmtree(self.folder)
        return outcome


@dataclass(slots=True)
class Outcome:
    """Counts, which can be added up."""

    runs: int = 0
    """Processes that were started."""
    steps: Counter[str] = field(default_factory=Counter)
    """How many were killed at each named step."""
    moments: int = 0
    """How many were killed at a random moment."""
    fates: Counter[str] = field(default_factory=Counter)
    """How many records had each of the fates of a `Judgement`."""
    records: int = 0
    failed: int = 0
    """Processes that hung, or ended in an error."""
    broken: list[str] = field(default_factory=list)
    """Every promise that was not kept, in words."""

    @property
    def kills(self) -> int:
        return self.moments + self.steps.total()

    def add(self, other: Outcome) -> None:
        self.runs += other.runs
        self.steps += other.steps
        self.moments += other.moments
        self.fates += other.fates
        self.records += other.records
        self.failed += other.failed
        self.broken += other.broken

    def count(self, job: Job, ending: Ending, judgement: Judgement) -> None:
        """A round is over: processes died one after the other, and the last one came to its end."""
        self.runs += ending.runs
        self.steps.update(kill.step for kill in ending.kills if isinstance(kill, Death))
        self.moments += sum(not isinstance(kill, Death) for kill in ending.kills)
        self.records += judgement.records
        for fate in FATES:
            self.fates[fate] += len(getattr(judgement, fate))
        self.failed += bool(ending.problem)
        what = [*([ending.problem] if ending.problem else []), *judgement.broken]
        killed = ", ".join(map(str, ending.kills)) or "nothing"
        self.broken += [f"job {job.number} ({job.kind}): {each}; killed: {killed}" for each in what]


FATES: Final = ("lost", "repeated", "not_once", "out_of_order", "given_up", "strange")


def _kill_consumers(job: Job, outcome: Outcome) -> None:
    kind, left = job.kind, deque(job.kills)
    number = 0
    while left:
        database = shared_postgres().fresh_database() if kind.keeps == POSTGRESQL else None
        workers = 1 if kind.order == "partition" else 3
        run = Run(job.folder / str(number), kind.guarantee, kind.order, workers, database)
        run.prepare()
        outcome.count(job, until_a_process_ends(run.start, left), run.judged())
        number += 1


def _kill_producers(job: Job, outcome: Outcome) -> None:
    """One spool outlives them all; the last one only delivers what the others left behind."""
    chance = random.Random(job.number)
    topics = [f"kills-{job.number}-{each}" for each in ("a", "b")]
    ending = Ending()
    with penstock.connect(job.broker) as stream, factory(job.broker, job.folder, topics) as made:
        for topic in topics:
            stream.create_topic(topic, 1)
        for kill in job.kills:
            ending.runs += 1
            if isinstance(kill, Death):
                code = made.run(RECORDS_OF_PRODUCERS[0], step=kill.at, nth=kill.nth)
            else:
                code = made.run(chance.choice(RECORDS_OF_PRODUCERS), kill_after_s=kill.after_s)
            if code == KILLED:
                ending.kills.append(kill)
            elif code != 0:
                break
        else:
            ending.runs += 1
            code = made.run(0)
        ending.exit_code = code
        judgement = judge_what_arrived(made, arrived(stream, topics))
    outcome.count(job, ending, judgement)
