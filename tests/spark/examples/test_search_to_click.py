"""The example of searches and clicks, joined by hand beside it."""

from __future__ import annotations

import datetime
import json

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from examples.pipelines import search_to_click as example
from tests.seeds import seed_of

BEGIN = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
WITHIN = datetime.timedelta(seconds=10)

Pair = tuple[int, str, str, datetime.datetime, int | None, str | None, datetime.datetime | None]


def pairs_by_hand(seed: int) -> list[Pair]:
    made = example.generate(seed, BEGIN)
    clicks = {event.number: event for event in made if isinstance(event, example.Click)}.values()
    assert len(clicks) + example.SEARCHES < len(made), "some clicks are sent twice"
    pairs: list[Pair] = []
    for search in (event for event in made if isinstance(event, example.Search)):
        about = search.number, search.user, search.words, search.at
        followed: list[Pair] = [
            (*about, click.number, click.page, click.at)
            for click in clicks
            if click.user == search.user and search.at <= click.at <= search.at + WITHIN
        ]
        pairs += followed or [(*about, None, None, None)]
    return pairs


def pairs_found(connection: ps.Connection) -> list[Pair]:
    time = datetime.datetime.fromisoformat
    return [
        (
            row["number"],
            row["user"],
            row["words"],
            time(row["at"]),
            row["click_number"],
            row["click_page"],
            time(row["click_at"]) if row["click_at"] is not None else None,
        )
        for row in (json.loads(record.value or b"") for record in connection.read("searches.followed"))
    ]


@pytest.mark.sampled(1, among="worked cases")
def test_every_search_has_the_clicks_that_followed_it_or_none(
    spark: SparkSession, log_url: str, connection: ps.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of()
    example.main(log_url, seed)
    expected = pairs_by_hand(seed)
    found = [pair for pair in pairs_found(connection) if pair[1] != "clock"]
    assert sorted(found, key=str) == sorted(expected, key=str)

    led = len({pair[0] for pair in expected if pair[4] is not None})
    out = capsys.readouterr().out
    assert f"1,000 searches: {led:,} led to a click, {1_000 - led:,} to none" in out
    for words in example.CHANCE_OF_A_CLICK:
        searched = len({pair[0] for pair in expected if pair[2] == words})
        followed = len({pair[0] for pair in expected if pair[2] == words and pair[4] is not None})
        shown = next(line.split() for line in out.splitlines() if line.startswith(f"{words} "))
        assert (int(shown[1]), int(shown[-2])) == (searched, followed)
