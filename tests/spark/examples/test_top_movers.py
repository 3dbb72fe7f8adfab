"""The example of top movers, ranked by hand beside it."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from examples.pipelines import top_movers
from tests.seeds import seed_of

BEGIN = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)

Moves = dict[datetime.datetime, dict[str, float]]


def rows_of(connection: ps.Connection, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in connection.read(topic)]


def moves_by_hand(seed: int) -> Moves:
    """The change of each share in percent, for each day that has ended."""
    trades: dict[tuple[datetime.datetime, str], list[tuple[datetime.datetime, int]]] = {}
    for trade in top_movers.generate(seed, BEGIN):
        day = trade.at.replace(hour=0, minute=0, second=0)
        trades.setdefault((day, trade.symbol), []).append((trade.at, trade.cents))
    moves: Moves = {}
    for (day, symbol), prices in trades.items():
        opened, closed = min(prices)[1], max(prices)[1]
        moves.setdefault(day, {})[symbol] = (closed - opened) / opened * 100
    del moves[BEGIN + top_movers.DAYS * top_movers.DAY]
    return moves


def ranked(move: dict[str, float]) -> list[tuple[int, str, float]]:
    best = sorted(move.items(), key=lambda each: (abs(each[1]), each[0]), reverse=True)[:10]
    return [(rank, symbol, percent) for rank, (symbol, percent) in enumerate(best, start=1)]


@pytest.mark.sampled(1, among="worked cases")
def test_each_day_has_the_ten_shares_that_moved_most(
    spark: SparkSession, log_url: str, connection: ps.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of()
    top_movers.main(log_url, seed)
    by_hand = moves_by_hand(seed)
    assert len(by_hand) == top_movers.DAYS

    found: Moves = {}
    for row in rows_of(connection, "moves"):
        day = found.setdefault(datetime.datetime.fromisoformat(row["day"]), {})
        assert row["symbol"] not in day, "a share has one change a day"
        day[row["symbol"]] = row["percent"]
    assert found == by_hand
    assert len(connection.admin().partitions_of("moves")) == 1

    movers: dict[datetime.datetime, list[tuple[int, str, float]]] = {}
    for row in rows_of(connection, "movers"):
        movers.setdefault(top_movers.day_of(row), []).append((row["rank"], row["symbol"], row["percent"]))
    complete = sorted(by_hand)[:-1]
    assert {day: sorted(rows) for day, rows in movers.items()} == {day: ranked(by_hand[day]) for day in complete}

    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    expected = [each for day in complete for each in ranked(by_hand[day])]
    assert [(int(rank), symbol, change) for rank, symbol, change, *_ in shown] == [
        (rank, symbol, f"{percent:+.2f}") for rank, symbol, percent in expected
    ]
