"""Consumers killed with SIGKILL at every step that they have, and at random: what the guarantees promise holds."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.crash.dying_consumer import MOODY, POISONED, RECORDS, Death, Run
from tests.postgres import shared_postgres
from tests.seeds import seed_of

GUARANTEES: Final = ("at-least-once", "exactly-once", "at-most-once")
STEPS: Final = ("claim", "load", "leases", "renew", "save", "release", "put", "poll", "handler")
STEPS_OF_TRANSACTIONS: Final = ("begin", "transaction.save", "commit")
NUMBERS: Final = (1, 2, 5, 12)
RANDOM_KILLS: Final = 40
POSTGRES_KILLS: Final = 25
GOOD: Final = Counter({number: 1 for number in range(RECORDS) if number not in POISONED})
BAD: Final = Counter(dict.fromkeys(POISONED, 1))


def check(run: Run) -> None:
    """What must be true when a run has come to its end, however many processes died on the way."""
    called, effects, excused = run.called(), run.effects(), run.excused()
    assert sum(excused.values()) <= 3, f"too many good records were given up: {excused}"
    if run.guarantee == "at-least-once":
        assert set(called) | set(excused) >= set(GOOD), f"lost: {sorted(set(GOOD) - set(called))}"
        assert not set(called) - set(GOOD)
        assert run.letters("ValueError") + excused >= BAD
    elif run.guarantee == "exactly-once":
        assert effects + (excused - BAD) == GOOD, f"lost {GOOD - effects}, repeated {effects - GOOD}"
        assert run.letters("ValueError") + excused >= BAD
    else:
        assert not called - GOOD, f"handled twice: {called - GOOD}"


def steps_of(guarantee: str) -> list[Death]:
    steps = [*STEPS, *(STEPS_OF_TRANSACTIONS if guarantee == "exactly-once" else ())]
    return [Death(step, nth, after) for step in steps for nth in NUMBERS for after in (False, True)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("order", ["partition", "key"])
def test_killed_at_each_step_in_turn_it_goes_on_as_promised(guarantee: str, order: str, tmp_path: Path) -> None:
    """Processes die one after the other, each at another step, until one comes to the end; then all begins anew."""
    deaths = steps_of(guarantee)
    random.Random(seed_of()).shuffle(deaths)
    killed: list[Death] = []
    number = 0
    run = Run(tmp_path / "0", guarantee, order, 1 if order == "partition" else 3)
    run.prepare()
    while deaths:
        death = deaths.pop()
        code = Run(run.folder, guarantee, order, run.workers, death).finish()
        assert code in (0, -9), f"{death}: exit code {code}"
        if code == -9:
            killed.append(death)
            continue
        check(run)
        number += 1
        run = Run(tmp_path / str(number), guarantee, order, run.workers)
        run.prepare()
    assert run.finish() == 0
    check(run)
    assert len(killed) >= len(steps_of(guarantee)) // 2, f"too few of the steps were reached: {list(map(str, killed))}"


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("none", 3)])
def test_killed_at_random_moments_it_goes_on_as_promised(
    guarantee: str, order: str, workers: int, tmp_path: Path
) -> None:
    chance = random.Random(seed_of())
    kills = number = 0
    run = Run(tmp_path / "0", guarantee, order, workers)
    run.prepare()
    while kills < RANDOM_KILLS:
        process = run.start()
        killer = threading.Timer(chance.uniform(0.005, 0.5), process.kill)
        killer.start()
        process.join(60)
        killer.cancel()
        assert process.exitcode in (0, -9)
        if process.exitcode == -9:
            kills += 1
            continue
        check(run)
        number += 1
        run = Run(tmp_path / str(number), guarantee, order, workers)
        run.prepare()
    assert run.finish() == 0
    check(run)


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3)])
def test_effects_in_postgresql_happen_exactly_once_whenever_it_is_killed(
    order: str, workers: int, tmp_path: Path
) -> None:
    """Each process dies at another step of a transaction, or at a random moment."""
    chance = random.Random(seed_of())
    server = shared_postgres()
    deaths = [Death(step, nth, after) for step in STEPS_OF_TRANSACTIONS for nth in (1, 3) for after in (False, True)]
    chance.shuffle(deaths)
    kills = number = 0
    while kills < POSTGRES_KILLS:
        number += 1
        run = Run(tmp_path / str(number), "exactly-once", order, workers, postgres=server.fresh_database())
        run.prepare()
        code = -9
        while code == -9:
            death = deaths.pop() if deaths else None
            process = dataclasses.replace(run, death=death).start()
            killer = threading.Timer(chance.uniform(0.02, 0.7), process.kill)
            if death is None and kills < POSTGRES_KILLS:
                killer.start()
            process.join(60)
            killer.cancel()
            assert process.exitcode in (0, -9)
            code = process.exitcode
            kills += code == -9
        check(run)


def test_without_a_crash_nothing_is_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, "at-least-once", "partition", 1)
    run.prepare()
    assert run.finish() == 0
    assert run.called() == GOOD
    assert run.letters("ValueError") == BAD
    assert set(run.called()) >= MOODY
