"""Every worked case, killed in the middle of its first batch: what it leaves in the end is worked out by hand, too."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import penstock as ps
from examples.pipelines import click_enrichment, fraud_detection, search_to_click, system_usage, top_movers
from tests.sampling import sample
from tests.seeds import seed_of
from tests.spark.examples import (
    test_click_enrichment,
    test_search_to_click,
    test_system_usage,
    test_top_movers,
)
from tests.spark.examples.killed_program import BUILDERS, log_of
from tests.spark.killing import run_until
from tests.spark.realtime import test_fraud_detection

Connections = dict[str, ps.Connection]
PROGRAM = ("-m", "tests.spark.examples.killed_program")


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Connections]:
    """The logs of the cases to kill: of one in `make test`."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(ps.connect(log_of(tmp_path, name))) for name in sample(BUILDERS, 1)}


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(1, among="killed drivers")
@pytest.mark.timeout(900)
def test_worked_cases_are_exact_though_each_is_killed_in_the_middle(logs: Connections, tmp_path: Path) -> None:
    seed = seed_of()
    for name, connection in logs.items():
        SENDING[name](connection, seed)
        connection.flush(timeout_s=60)
    for name in logs:
        folder = tmp_path / name / "pipelines"
        arguments = [*PROGRAM, str(tmp_path), name]
        assert run_until(has_begun_a_batch(folder), arguments, tmp_path), f"{name} should have been killed"
        assert not list(folder.rglob("commits/0")), f"the first batch of {name} should not be done"
    assert not run_until(None, [*PROGRAM, str(tmp_path), *logs], tmp_path)
    for name, connection in logs.items():
        CHECKS[name](connection, seed, tmp_path)


def has_begun_a_batch(folder: Path) -> Callable[[], bool]:
    return lambda: any(folder.rglob("offsets/0"))


def send_usage(usage: ps.Connection, seed: int) -> None:
    usage.create_topic("transactions", 2)
    later = test_system_usage.BEGIN + system_usage.DAY / 2
    for each in [
        *system_usage.generate(seed, test_system_usage.BEGIN),
        system_usage.Transaction(-1, "clock", 0, later),
    ]:
        usage.send(system_usage.transactions, each)


def check_usage(usage: ps.Connection, seed: int, folder: Path) -> None:
    assert test_system_usage.counted(usage) + test_system_usage.set_aside(usage) == test_system_usage.sent(usage)


def send_trades(movers: ps.Connection, seed: int) -> None:
    movers.create_topic("trades", 4)
    for trade in top_movers.generate(seed, test_top_movers.BEGIN):
        movers.send(top_movers.trades, trade)


def check_movers(connection: ps.Connection, seed: int, folder: Path) -> None:
    by_hand = test_top_movers.moves_by_hand(seed)
    movers: dict[datetime.datetime, list[tuple[int, str, float]]] = {}
    for row in test_top_movers.rows_of(connection, "movers"):
        movers.setdefault(top_movers.day_of(row), []).append((row["rank"], row["symbol"], row["percent"]))
    assert {day: sorted(rows) for day, rows in movers.items()} == {
        day: test_top_movers.ranked(by_hand[day]) for day in sorted(by_hand)[:-1]
    }


def send_clicks(enriched: ps.Connection, seed: int) -> None:
    enriched.create_topic("clicks", 2)
    enriched.create_topic("profiles", 2, {"cleanup.policy": "compact"})
    click_enrichment.send_profiles(enriched, click_enrichment.BEFORE)
    for click in click_enrichment.generate(seed, 0):
        enriched.send(click_enrichment.clicks, click)


def check_clicks(enriched: ps.Connection, seed: int, folder: Path) -> None:
    assert test_click_enrichment.enriched(enriched) == {
        click.number: test_click_enrichment.by_hand(click, click_enrichment.BEFORE)
        for click in click_enrichment.generate(seed, 0)
    }


def send_searches(followed: ps.Connection, seed: int) -> None:
    later = test_search_to_click.BEGIN + search_to_click.DAY / 2
    events = search_to_click.generate(seed, test_search_to_click.BEGIN)
    events += [search_to_click.Search(-1, "clock", "", later), search_to_click.Click(-1, "clock", "", later)]
    for event in events:
        if isinstance(event, search_to_click.Search):
            followed.send(search_to_click.searches, event)
        else:
            followed.send(search_to_click.clicks, event)


def check_searches(followed: ps.Connection, seed: int, folder: Path) -> None:
    pairs = [pair for pair in test_search_to_click.pairs_found(followed) if pair[1] != "clock"]
    assert sorted(pairs, key=str) == sorted(test_search_to_click.pairs_by_hand(seed), key=str)


def send_payments(fraud: ps.Connection, seed: int) -> None:
    made, cards, merchants = fraud_detection.generate(seed)
    of_topics: list[tuple[ps.Topic[Any], Sequence[object]]] = [
        (fraud_detection.cards, cards),
        (fraud_detection.merchants, merchants),
        (fraud_detection.transactions, made),
    ]
    for topic, values in of_topics:
        for value in values:
            fraud.send(topic, value)


def check_verdicts(fraud: ps.Connection, seed: int, folder: Path) -> None:
    with sqlite3.connect(folder / "fraud_detection" / "verdicts.db") as database:
        database.row_factory = sqlite3.Row
        verdicts = [dict(row) for row in database.execute("select * from verdicts")]
    assert test_fraud_detection.keyed(verdicts) == test_fraud_detection.expected(fraud_detection.generate(seed))


SENDING: Final[dict[str, Callable[[ps.Connection, int], None]]] = {
    "system_usage": send_usage,
    "top_movers": send_trades,
    "click_enrichment": send_clicks,
    "search_to_click": send_searches,
    "fraud_detection": send_payments,
}
CHECKS: Final[dict[str, Callable[[ps.Connection, int, Path], None]]] = {
    "system_usage": check_usage,
    "top_movers": check_movers,
    "click_enrichment": check_clicks,
    "search_to_click": check_searches,
    "fraud_detection": check_verdicts,
}
