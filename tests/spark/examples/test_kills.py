"""Every worked case, killed in the middle of its first batch: what it leaves in the end is worked out by hand, too."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock as ps
from examples.pipelines import click_enrichment, fraud_detection, search_to_click, system_usage, top_movers
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
    with ExitStack() as stack:
        yield {name: stack.enter_context(ps.connect(log_of(tmp_path, name))) for name in BUILDERS}


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.timeout(900)
def test_worked_cases_are_exact_though_each_is_killed_in_the_middle(logs: Connections, tmp_path: Path) -> None:
    seed = seed_of()
    send(logs, seed)
    for name in BUILDERS:
        folder = tmp_path / name / "pipelines"
        arguments = [*PROGRAM, str(tmp_path), name]
        assert run_until(has_begun_a_batch(folder), arguments, tmp_path), f"{name} should have been killed"
        assert not list(folder.rglob("commits/0")), f"the first batch of {name} should not be done"
    assert not run_until(None, [*PROGRAM, str(tmp_path), *BUILDERS], tmp_path)
    check(logs, seed, tmp_path)


def has_begun_a_batch(folder: Path) -> Callable[[], bool]:
    return lambda: any(folder.rglob("offsets/0"))


def send(logs: Connections, seed: int) -> None:
    usage = logs["system_usage"]
    usage.create_topic("transactions", 2)
    later = test_system_usage.BEGIN + system_usage.DAY / 2
    for each in [
        *system_usage.generate(seed, test_system_usage.BEGIN),
        system_usage.Transaction(-1, "clock", 0, later),
    ]:
        usage.send(system_usage.transactions, each)

    movers = logs["top_movers"]
    movers.create_topic("trades", 4)
    for trade in top_movers.generate(seed, test_top_movers.BEGIN):
        movers.send(top_movers.trades, trade)

    enriched = logs["click_enrichment"]
    enriched.create_topic("clicks", 2)
    enriched.create_topic("profiles", 2, {"cleanup.policy": "compact"})
    click_enrichment.send_profiles(enriched, click_enrichment.BEFORE)
    for click in click_enrichment.generate(seed, 0):
        enriched.send(click_enrichment.clicks, click)

    followed = logs["search_to_click"]
    later = test_search_to_click.BEGIN + search_to_click.DAY / 2
    events = search_to_click.generate(seed, test_search_to_click.BEGIN)
    events += [search_to_click.Search(-1, "clock", "", later), search_to_click.Click(-1, "clock", "", later)]
    for event in events:
        is_search = isinstance(event, search_to_click.Search)
        followed.send(search_to_click.searches if is_search else search_to_click.clicks, event)

    fraud = logs["fraud_detection"]
    made, cards, merchants = fraud_detection.generate(seed)
    for topic, values in (
        (fraud_detection.cards, cards),
        (fraud_detection.merchants, merchants),
        (fraud_detection.transactions, made),
    ):
        for value in values:
            fraud.send(topic, value)
    for connection in logs.values():
        connection.flush(timeout=60)


def check(logs: Connections, seed: int, folder: Path) -> None:
    usage = logs["system_usage"]
    assert test_system_usage.counted(usage) + test_system_usage.set_aside(usage) == test_system_usage.sent(usage)

    by_hand = test_top_movers.moves_by_hand(seed)
    movers: dict[datetime.datetime, list[tuple[int, str, float]]] = {}
    for row in test_top_movers.rows_of(logs["top_movers"], "movers"):
        movers.setdefault(top_movers.day_of(row), []).append((row["rank"], row["symbol"], row["percent"]))
    assert {day: sorted(rows) for day, rows in movers.items()} == {
        day: test_top_movers.ranked(by_hand[day]) for day in sorted(by_hand)[:-1]
    }

    assert test_click_enrichment.enriched(logs["click_enrichment"]) == {
        click.number: test_click_enrichment.by_hand(click, click_enrichment.BEFORE)
        for click in click_enrichment.generate(seed, 0)
    }

    pairs = [pair for pair in test_search_to_click.pairs_found(logs["search_to_click"]) if pair[1] != "clock"]
    assert sorted(pairs, key=str) == sorted(test_search_to_click.pairs_by_hand(seed), key=str)

    with sqlite3.connect(folder / "fraud_detection" / "verdicts.db") as database:
        database.row_factory = sqlite3.Row
        verdicts = [dict(row) for row in database.execute("select * from verdicts")]
    assert test_fraud_detection.keyed(verdicts) == test_fraud_detection.expected(fraud_detection.generate(seed))
