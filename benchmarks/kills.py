"""Consumers and producers killed with SIGKILL, thousands of them: what the guarantees promise, counted.

The larger form of what `make test` does. Some die at a named step, each step in its turn, others at a random moment.
About ten minutes; `python -m benchmarks kills --scale 6` takes an hour. This one passes or fails: a broken promise is
told with the number of its job, and `python -m benchmarks.kills --seed SEED --job NUMBER` carries out that job again.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final

from benchmarks.kills_jobs import POSTGRESQL, SPOOL, SQLITE, Job, Kind, Outcome
from benchmarks.report import Figure, Report
from benchmarks.servers import penstock_os
from tests.crash.dying_consumer import steps_of
from tests.producing.killed_producer import STEPS as STEPS_OF_PRODUCERS
from tests.prove.deaths import Death, Kill, Moment
from tests.seeds import VARIABLE, seed_of
from tools import parts

DURATION_S: Final = 600.0
SAY_EVERY_S: Final = 30.0
LANES: Final = min(8, 2 * (os.cpu_count() or 1))
"""Jobs that are carried out at once: more than there are cores, as whoever follows a dead one waits for its lease."""
AT_STEPS: Final = 8
AT_MOMENTS: Final = 8
"""Kills of a job."""
EARLIEST_S: Final = {SQLITE: 0.005, POSTGRESQL: 0.02, SPOOL: 0.0}
LATEST_S: Final = {SQLITE: (0.2, 0.35, 0.5), POSTGRESQL: (0.3, 0.5, 0.7), SPOOL: (0.06, 0.12)}
"""Between when a process is killed that is killed at random. Where the latest is early, many die one after the other
before one comes to its end; where it is late, each gets a bit further."""
GUARANTEES: Final = ("at-most-once", "at-least-once", "exactly-once")
ORDERS: Final = ("partition", "key", "none")
PRODUCERS: Final = Kind("exactly-once", "key", SPOOL)
PRODUCERS_OFTENER: Final = 3
"""So many jobs with producers for each turn of all the consumers."""
TOLD: Final = 30
"""So many broken promises are told one by one."""
Say = Callable[[str], None]


def run(
    report: Report,
    say: Say,
    *,
    scale: float = 1.0,
    seed: int | None = None,
    only: int | None = None,
) -> list[str]:
    """Kill for ten minutes times `scale`, or carry out one job alone; gives every broken promise in a sentence."""
    seed = seed_of() if seed is None else seed
    kinds, missing = _kinds()
    outcomes = {kind: Outcome() for kind in kinds}
    folder = Path(tempfile.mkdtemp(prefix="penstock-kills-"))
    contender = penstock_os(folder)
    contender.start()
    started_s = time.monotonic()
    try:
        jobs = plan(seed, kinds, folder, f"kafka://{contender.server.bootstrap}")
        if only is not None:
            jobs = itertools.islice(jobs, only, only + 1)
        for job, outcome in _carry_out(jobs, folder, started_s + DURATION_S * scale, outcomes, say):
            outcomes[job.kind].add(outcome)
    finally:
        contender.stop()
    broken = [each for outcome in outcomes.values() for each in outcome.broken]
    if broken:
        say(f"  {VARIABLE}={seed}; what the broken jobs left behind is in {folder}")
    else:
        shutil.rmtree(folder)
    names = dict.fromkeys(kind.group for kind in kinds)
    groups = {name: _sum(outcome for kind, outcome in outcomes.items() if kind.group == name) for name in names}
    for group, outcome in groups.items():
        report.figures += _figures(group, outcome)
    report.notes += _notes(seed, time.monotonic() - started_s, groups, outcomes, missing)
    report.notes += [f"BROKEN: {each}" for each in broken[:TOLD]]
    report.notes += [f"BROKEN: {len(broken) - TOLD} more like these"] if len(broken) > TOLD else []
    return broken


def plan(seed: int, kinds: Sequence[Kind], folder: Path, broker: str) -> Iterator[Job]:
    """Jobs without end, kind after kind. All of one group share a deck of its named steps: each step has had its turn
    before one has its second."""
    decks = {kind.group: _deck(seed, kind) for kind in kinds}
    for number in itertools.count():
        kind = kinds[number % len(kinds)]
        chance = random.Random(f"{seed} {number}")
        latest_s = chance.choice(LATEST_S[kind.keeps])
        kills: list[Kill] = [Moment(chance.uniform(EARLIEST_S[kind.keeps], latest_s)) for _ in range(AT_MOMENTS)]
        kills += itertools.islice(decks[kind.group], AT_STEPS)
        chance.shuffle(kills)
        yield Job(number, kind, tuple(kills), folder / f"job-{number}", broker)


def _deck(seed: int, kind: Kind) -> Iterator[Death]:
    chance = random.Random(f"{seed} {kind.group}")
    while True:
        deaths = deaths_of(kind)
        chance.shuffle(deaths)
        yield from deaths


def deaths_of(kind: Kind) -> list[Death]:
    """Every named death that this kind can die."""
    if kind.keeps == SPOOL:
        return [Death(step, nth, after=True) for step in STEPS_OF_PRODUCERS for nth in (1, 5)]
    return steps_of(kind.guarantee)


def _kinds() -> tuple[list[Kind], str]:
    """Whom there is to kill, in turn, and what is missing for more."""
    stores, missing = [SQLITE, POSTGRESQL], ""
    try:
        parts.postgres_programs()
    except parts.PartMissing as problem:
        stores, missing = [SQLITE], str(problem)
    kinds = [Kind(guarantee, order, store) for store in stores for order in ORDERS for guarantee in GUARANTEES]
    for place in range(PRODUCERS_OFTENER):
        kinds.insert(place * len(kinds) // PRODUCERS_OFTENER, PRODUCERS)
    return kinds, missing


def _write_to(folder: Path) -> None:
    """What this process and those that it starts have to say goes to a file, as there is much of it."""
    output = os.open(folder / f"output-{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)


def _carry_out(
    jobs: Iterator[Job], folder: Path, until_s: float, outcomes: dict[Kind, Outcome], say: Say
) -> Iterator[tuple[Job, Outcome]]:
    """Some jobs at once, each in a process of its own, and new ones until the time is up."""
    started_s = said_s = time.monotonic()
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(LANES, spawning, _write_to, (folder,)) as pool:
        running: dict[Future[Outcome], Job] = {pool.submit(job.carry_out): job for job in itertools.islice(jobs, LANES)}
        while running:
            over, _ = wait(running, SAY_EVERY_S, FIRST_COMPLETED)
            for future in over:
                yield running.pop(future), future.result()
                for job in itertools.islice(jobs, 1 if time.monotonic() < until_s else 0):
                    running[pool.submit(job.carry_out)] = job
            if time.monotonic() >= said_s + SAY_EVERY_S:
                said_s = time.monotonic()
                so_far = _sum(outcomes.values())
                told = f"{so_far.runs:,} runs, {so_far.kills:,} kills, {len(so_far.broken)} promises broken"
                say(f"  {said_s - started_s:.0f} s: {told}")


def _sum(outcomes: Iterable[Outcome]) -> Outcome:
    total = Outcome()
    for outcome in outcomes:
        total.add(outcome)
    return total


def _figures(group: str, outcome: Outcome) -> list[Figure]:
    """The bar is 0 for what the guarantee forbids; the rest is its price, and has none."""
    producing = group.startswith("producers")
    forbidden = {"out_of_order", "strange"}
    forbidden |= {"repeated"} if group.endswith("at-most-once") or producing else {"lost"}
    forbidden |= {"lost", "not_once"} if group.endswith("exactly-once") else set()
    told = {
        "lost": "lost",
        "repeated": "stored more than once" if producing else "handled more than once",
        "not_once": "effects not exactly one",
        "out_of_order": "out of order",
        "strange": "came out and never went in",
        "given_up": "given up, to the dead letters",
    }
    skipped = {"given_up"} if producing else set() if group.endswith("exactly-once") else {"not_once"}
    return [
        Figure(f"{group}: runs", outcome.runs, "processes"),
        Figure(f"{group}: killed at a named step", outcome.steps.total(), "processes"),
        Figure(f"{group}: killed at a random moment", outcome.moments, "processes"),
        Figure(f"{group}: hung, or ended in an error", outcome.failed, "processes", 0, lower_is_better=True),
        Figure(f"{group}: sent" if producing else f"{group}: to be handled", outcome.records, "records"),
        *(
            Figure(f"{group}: {text}", outcome.fates[fate], "records", 0 if fate in forbidden else None, True)
            for fate, text in told.items()
            if fate not in skipped
        ),
    ]


def _notes(
    seed: int, took_s: float, groups: dict[str, Outcome], outcomes: dict[Kind, Outcome], missing: str
) -> list[str]:
    everything = _sum(groups.values())
    notes = [
        f"Kills: seed {seed} ({VARIABLE}={seed} decides the same again), {took_s:.0f} s, {everything.runs:,} runs, "
        f"{everything.kills:,} of them killed with SIGKILL. A consumer has 60 records to handle, of which some fail "
        "once and some always; processes follow one another until one comes to its end, then everything is counted and "
        "begins again. A record is given up, and told with the dead letters, when five processes have died with it in "
        "hand, or, at most once, when its handler has raised; it is not lost. A record for which `send` had not "
        "returned when its producer died may be there or not, but not twice."
    ]
    for group, outcome in groups.items():
        deaths = {death.step for kind in outcomes if kind.group == group for death in deaths_of(kind)}
        unreached = ", ".join(sorted(deaths - outcome.steps.keys()))
        told = f"; never reached: {unreached}" if unreached else ""
        notes.append(f"{group}: died at {len(deaths & outcome.steps.keys())} of {len(deaths)} named steps{told}.")
    each = "; ".join(f"{kind} {o.runs:,}, {o.kills:,}" for kind, o in outcomes.items())
    return [*notes, f"Runs and kills of each kind: {each}.", *([f"Without PostgreSQL: {missing}."] if missing else [])]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="how long, as a part of ten minutes (1.0)")
    parser.add_argument("--seed", type=int, help="of a run that is to be repeated; a new one where none is given")
    parser.add_argument("--job", type=int, help="carry out this one alone")
    options = parser.parse_args()
    report = Report()
    broken = run(report, print, scale=options.scale, seed=options.seed, only=options.job)
    print(report.text())
    if broken:
        sys.exit(f"{len(broken)} promises were broken")


if __name__ == "__main__":
    main()
