"""Consumers killed with SIGKILL at every step that they have, and at random: what the guarantees promise holds."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from pathlib import Path
from typing import Final

import pytest

from tests.crash.dying_consumer import GOOD, POISONED, STEPS_OF_TRANSACTIONS, Run, steps_of
from tests.postgres import shared_postgres
from tests.prove.deaths import Death, Kill, Moment, until_one_ends
from tests.sampling import sample, times
from tests.seeds import seed_of

GUARANTEES: Final = ("at-least-once", "exactly-once", "at-most-once")
STEPS_IN_A_SAMPLE: Final = 12
RANDOM_KILLS: Final = 10
POSTGRES_KILLS: Final = 10
SOAK_KILLS: Final = 100
WORK_S: Final = 0.003
LATEST_S: Final = 0.4
"""With so much work, in each of its workers, a consumer that has to wait for the lease of the one before takes so long
for everything, about."""


def live_and_die(run: Run, kills: deque[Kill]) -> list[Kill]:
    """Let it come to its end over all that die on the way, and check what must be true then; gives the kills."""
    run.prepare()
    ending = until_one_ends(run.start, kills)
    assert not ending.problem, f"{ending.problem}; killed: {ending.story}"
    judgement = run.judged()
    assert not judgement.broken, f"{judgement.broken}; killed: {ending.story}"
    assert len(judgement.given_up) <= 3, f"too many good records were given up: {judgement.given_up}"
    return ending.kills


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("order", ["partition", "key"])
def test_killed_at_each_step_in_turn_it_goes_on_as_promised(guarantee: str, order: str, tmp_path: Path) -> None:
    """Processes die one after the other, each at another step, until one comes to the end; then all begins again."""
    deaths = sample(steps_of(guarantee), STEPS_IN_A_SAMPLE)
    random.Random(seed_of()).shuffle(deaths)
    left: deque[Kill] = deque(deaths)
    killed: list[Kill] = []
    for number in itertools.count():
        killed += live_and_die(Run(tmp_path / str(number), guarantee, order, 1 if order == "partition" else 3), left)
        if not left:
            break
    assert len(killed) >= len(deaths) // 2, f"too few of the steps were reached: {list(map(str, killed))}"


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("none", 3)])
def test_killed_at_random_moments_it_goes_on_as_promised(
    guarantee: str, order: str, workers: int, tmp_path: Path
) -> None:
    chance = random.Random(seed_of())
    kills = times(RANDOM_KILLS, SOAK_KILLS)
    killed: list[Kill] = []
    for number in itertools.count():
        left = range(kills - len(killed))
        moments: deque[Kill] = deque(Moment(chance.uniform(0.005, LATEST_S)) for _ in left)
        run = Run(tmp_path / str(number), guarantee, order, workers, work_s=WORK_S * workers)
        killed += live_and_die(run, moments)
        if len(killed) == kills:
            break


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3)])
def test_effects_in_postgresql_happen_exactly_once_whenever_it_is_killed(
    order: str, workers: int, tmp_path: Path
) -> None:
    """Each process dies at another step of a transaction, in a handler among others whose statements were sent ahead or
    are repeated after a failure, or at a random moment."""
    chance = random.Random(seed_of())
    server = shared_postgres()
    kills = times(POSTGRES_KILLS, SOAK_KILLS)
    deaths = [Death(step, nth, after) for step in STEPS_OF_TRANSACTIONS for nth in (1, 3) for after in (False, True)]
    deaths += [Death("handler", nth, after) for nth in (3, 6, 9) for after in (False, True)]
    chance.shuffle(deaths)
    del deaths[kills:]
    left: deque[Kill] = deque(deaths)
    killed: list[Kill] = []
    for number in itertools.count():
        left.extend(Moment(chance.uniform(0.02, LATEST_S)) for _ in range(kills - len(killed) - len(left)))
        database = server.fresh_database()
        run = Run(tmp_path / str(number), "exactly-once", order, workers, postgres=database, work_s=WORK_S * workers)
        killed += live_and_die(run, left)
        if len(killed) == kills:
            break


def test_without_a_crash_nothing_is_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, "at-least-once", "partition", 1)
    assert not live_and_die(run, deque())
    assert Counter(run.handled()) == dict.fromkeys(GOOD, 1)
    assert run.letters("ValueError") == dict.fromkeys(POISONED, 1)


@pytest.mark.parametrize(("order", "workers"), [("partition", 1), ("key", 3)])
def test_what_stands_behind_records_that_are_tried_in_groups_does_not_overtake_them(
    order: str, workers: int, tmp_path: Path
) -> None:
    """After some deaths, what was in hand then is suspected, and handled in groups, while more is read."""
    deaths: deque[Kill] = deque([Death("handler", 12, after=False), *[Death("handler", 1, after=False)] * 3])
    assert len(live_and_die(Run(tmp_path, "at-least-once", order, workers), deaths)) == 4
