"""One job of killing: a consumer, or a producer with a spool, begun again until its list of kills is used up.

Everything is decided beforehand: a job that was carried out once can be carried out again. What is killed, and how, is
that of the tests: `tests.crash.dying_consumer` and `tests.producing.killed_producer`.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import penstock
from tests.crash.dying_consumer import Run
from tests.postgres import shared_postgres
from tests.producing.killing import arrived, factory
from tests.prove.deaths import KILLED, Death, Ending, Kill, until_one_ends
from tests.prove.judging import Judgement, judge_producers

SQLITE: Final = "SQLite"
POSTGRESQL: Final = "PostgreSQL"
SPOOL: Final = "spool"
RECORDS_OF_PRODUCERS: Final = (120, 500, 3_000)
FATES: Final = ("lost", "repeated", "not_once", "out_of_order", "given_up", "strange")
"""Of a record, as a `Judgement` names them."""
FEWEST_KILLS: Final = 2
"""With less than this, no record is in hand so often when a process dies that it may be given up for it."""


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
        return f"{self.guarantee}, order {self.order}, {self.keeps}"


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
    """How many records had each of FATES."""
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

    def count(self, job: Job, ending: Ending, judge: Callable[[], Judgement]) -> None:
        """A round is over: processes died one after the other, and the last one came to its end. If it did not, what
        is there is nothing to judge."""
        self.runs += ending.runs
        self.steps.update(kill.step for kill in ending.kills if isinstance(kill, Death))
        self.moments += sum(not isinstance(kill, Death) for kill in ending.kills)
        problems = [ending.problem]
        if ending.problem:
            self.failed += 1
        else:
            judgement = judge()
            self.records += judgement.records
            self.fates.update({fate: len(getattr(judgement, fate)) for fate in FATES})
            problems = judgement.broken
            if judgement.given_up and len(ending.kills) < FEWEST_KILLS and job.kind.guarantee != "at-most-once":
                problems.append(f"{len(judgement.given_up)} good records were given up after so few kills")
        self.broken += [f"job {job.number} ({job.kind}): {each}; killed: {ending.story}" for each in problems]


def _kill_consumers(job: Job, outcome: Outcome) -> None:
    kind, left = job.kind, deque(job.kills)
    for number in itertools.count():
        database = shared_postgres().fresh_database() if kind.keeps == POSTGRESQL else None
        workers = 1 if kind.order == "partition" else 3
        run = Run(job.folder / str(number), kind.guarantee, kind.order, workers, database)
        run.prepare()
        outcome.count(job, until_one_ends(run.start, left), run.judged)
        if not left or outcome.failed:
            break


def _kill_producers(job: Job, outcome: Outcome) -> None:
    """One spool outlives them all; the last one only delivers what the others left behind."""
    chance = random.Random(repr(job.kills))
    topics = [f"kills-{job.number}-{each}" for each in ("a", "b")]
    with penstock.connect(job.broker) as stream, factory(job.broker, job.folder, topics) as made:
        for topic in topics:
            stream.create_topic(topic, 1)
        codes = []
        for kill in job.kills:
            if isinstance(kill, Death):
                codes.append(made.run(RECORDS_OF_PRODUCERS[0], step=kill.at, nth=kill.nth))
            else:
                codes.append(made.run(chance.choice(RECORDS_OF_PRODUCERS), kill_after_s=kill.after_s))
        codes.append(made.run(0))
        ending = Ending(
            runs=len(codes),
            kills=[kill for kill, code in zip(job.kills, codes, strict=False) if code == KILLED],
            exit_code=next((code for code in codes[:-1] if code not in (0, KILLED)), codes[-1]),
        )
        outcome.count(job, ending, lambda: judge_producers(made.taken, made.sizes, arrived(stream, topics)))
