"""The example of click enrichment, looked up by hand beside it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from examples.pipelines import click_enrichment as example
from tests.seeds import seed_of

Profiles = Mapping[str, example.Profile | None]


def by_hand(click: example.Click, profiles: Profiles) -> dict[str, Any]:
    profile = profiles[click.user]
    about = {"age": None, "city": None, "plan": None} if profile is None else dataclasses.asdict(profile)
    return {**about, **dataclasses.asdict(click)}


def enriched(connection: ps.Connection) -> dict[int, dict[str, Any]]:
    rows = [json.loads(record.value or b"") for record in connection.read("clicks.enriched")]
    assert len({row["number"] for row in rows}) == len(rows), "a click is there twice"
    return {row["number"]: row for row in rows}


@pytest.mark.sampled(1, among="worked cases")
def test_clicks_carry_the_profile_of_their_time_though_nothing_was_restarted(
    spark: SparkSession, log_url: str, connection: ps.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of()
    example.main(log_url, seed)
    before, after = example.generate(seed, 0), example.generate(seed, example.CLICKS)
    changed: Profiles = {**example.BEFORE, **example.CHANGES}
    expected = {click.number: by_hand(click, example.BEFORE) for click in before}
    expected |= {click.number: by_hand(click, changed) for click in after}
    assert enriched(connection) == expected
    _check_shown(capsys.readouterr().out, expected)

    more = [example.Click(1_000 + number, user, "home") for number, user in enumerate(changed)]
    for click in more:
        connection.send(example.clicks, click)
    connection.flush(timeout_s=60)
    with example.build(log_url) as pipeline:
        pipeline.run(once=True)
    assert enriched(connection) == expected | {click.number: by_hand(click, changed) for click in more}


def _check_shown(out: str, expected: Mapping[int, dict[str, Any]]) -> None:
    for title, first in (("before", 0), ("after", example.CLICKS)):
        rows = [expected[number] for number in range(first, first + example.CLICKS)]
        text = out.partition(f"{example.CLICKS} clicks {title} the changes\n")[2].partition("\n\n")[0]
        shown = [line.split() for line in text.splitlines()]
        assert {words[0]: int(words[-1]) for words in shown} == Counter(row["user"] for row in rows)
        unknown = {row["user"] for row in rows if row["plan"] is None}
        assert {words[0] for words in shown if "unknown" in words} == unknown
