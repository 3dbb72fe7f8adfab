"""Searches and the clicks that followed: pairs, and those that found no partner, exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import join_within
from tests.seeds import seed_of
from tests.spark.time.batches import Batches, Collected, at

SEARCHES, CLICKS = "user string, search int, searched timestamp", "user string, click int, clicked timestamp"


def test_searches_meet_the_clicks_that_followed_within_ten_seconds(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    searches, clicks = (Batches(spark, tmp_path / name, schema) for name, schema in (("s", SEARCHES), ("c", CLICKS)))
    all_searches: list[tuple[str, int, float]] = []
    all_clicks: list[tuple[str, int, float]] = []
    for step in range(4):
        new_searches = [(rng.choice("abc"), step * 10 + i, step * 30 + rng.randrange(30)) for i in range(6)]
        new_clicks = [(rng.choice("abc"), step * 10 + i, step * 30 + rng.randrange(36)) for i in range(6)]
        searches.put([{"user": user, "search": number, "searched": at(when)} for user, number, when in new_searches])
        clicks.put([{"user": user, "click": number, "clicked": at(when)} for user, number, when in new_clicks])
        all_searches += new_searches
        all_clicks += new_clicks
    # Rows of a user nobody else is, much later: they close everything.
    for _ in range(2):
        searches.put([{"user": "end", "search": -1, "searched": at(10_000)}])
        clicks.put([{"user": "end", "click": -1, "clicked": at(10_000)}])

    gates = [
        OnTimeGate(f"gate{i}", name, grace="40 seconds", side=str(tmp_path / "side"))
        for i, name in enumerate(("searched", "clicked"))
    ]
    joined = join_within(
        gates[0].apply(searches.stream()),
        gates[1].apply(clicks.stream()),
        "user",
        "searched",
        "clicked",
        within="10 seconds",
        unmatched="both",
    )
    collected = Collected(tmp_path / "ck", gates)
    with pytest.raises(StreamingQueryException):
        collected.run(joined, fail_at=2)
    collected.run(joined)

    pairs = {
        (user, search, click)
        for user, search, searched in all_searches
        for other, click, clicked in all_clicks
        if user == other and searched <= clicked <= searched + 10
    }
    lone_searches = {(user, number, None) for user, number, _ in all_searches} - {(u, s, None) for u, s, _ in pairs}
    lone_clicks = {(user, None, number) for user, number, _ in all_clicks} - {(u, None, c) for u, _, c in pairs}
    found = [(row.user, row.search, row.click) for row in collected.rows if row.user != "end"]
    assert len(pairs) > 2
    assert collected.late == []
    assert collected.dropped == 0
    assert sorted(found, key=repr) == sorted(pairs | lone_searches | lone_clicks, key=repr)


def test_what_would_be_kept_for_ever_or_has_two_names_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    searches, clicks = (Batches(spark, tmp_path / name, schema) for name, schema in (("s", SEARCHES), ("c", CLICKS)))
    left = searches.stream().withWatermark("searched", "1 minute")
    right = clicks.stream().withWatermark("clicked", "1 minute")
    how: dict[str, Any] = {"left_time": "searched", "right_time": "clicked", "within": "10 seconds"}
    with pytest.raises(ConfigError, match="right stream has no watermark on 'clicked'"):
        join_within(left, clicks.stream(), "user", **how)
    with pytest.raises(SchemaMismatchError, match="no column 'session' to join on; the left side has"):
        join_within(left, right, "session", **how)
    with pytest.raises(SchemaMismatchError, match="both sides have search, searched"):
        join_within(left, left, "user", "searched", "searched", "1 second")
    with pytest.raises(ConfigError, match="unmatched='all' is not allowed"):
        join_within(left, right, "user", **how, unmatched="all")  # type: ignore[arg-type]
    assert join_within(left, left, "user", "searched", "searched", "1 second", right_prefix="next_").columns == [
        "user",
        "search",
        "searched",
        "next_search",
        "next_searched",
    ]
