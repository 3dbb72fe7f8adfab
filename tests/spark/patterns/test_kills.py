"""Patterns in a program that is killed while it is at some of them: every result is there once, and right.

The other patterns (ranking, looking up, joining) are killed in the worked cases, tests/spark/examples.
"""

from __future__ import annotations

import collections
import datetime
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.sampling import sample
from tests.seeds import seed_of
from tests.spark.killing import run_until
from tests.spark.patterns.killed_program import EVENTS, Event

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
PEOPLE = ("ann", "bob", "cid")
COUNT = 240
STAGES = (("big", "small", "summaries"), ("unique", "ordered"))
"""What two cores work at together: a run takes two queries at a time."""
PROGRAM = ("-m", "tests.spark.patterns.killed_program")


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(1, among="killed drivers")
@pytest.mark.timeout(600)
def test_patterns_are_exact_though_the_program_is_killed(
    log_url: str, connection: ps.Connection, tmp_path: Path
) -> None:
    events = made(random.Random(seed_of()))
    connection.create_topic("events", 2)
    for topics in STAGES:
        for topic in topics:
            connection.create_topic(topic, 1)
    for number, event in enumerate(events):
        # Both partitions come to the same time in each batch: were one far ahead, rows of the other would be late.
        connection.send(EVENTS, event, partition=number % 2)
    connection.flush(timeout_s=60)
    for killed_at in sample(STAGES, 1):
        assert run_until(written(connection, killed_at), [*PROGRAM, log_url], tmp_path), "it ended before it was killed"
    assert not run_until(None, [*PROGRAM, log_url], tmp_path)
    check(connection, [event for event in events if event.who != "end"])


def made(chance: random.Random) -> list[Event]:
    """Events a second apart and up to four seconds out of sequence, one in ten of them twice."""

    def moment(second: float) -> datetime.datetime:
        return NOON + datetime.timedelta(milliseconds=round(second * 1000))

    events = []
    for number in range(COUNT):
        at = moment(10 + number - chance.uniform(0, 4))
        event = Event(number, chance.choice(PEOPLE), chance.randrange(100), at)
        events += [event, event] if number % 10 == 0 else [event]
    # What is final is written when time has gone on, in both partitions.
    return events + [Event(-1 - number, "end", 0, moment(3600 + number)) for number in range(8)]


def written(connection: ps.Connection, topics: Sequence[str]) -> Any:
    return lambda: any(connection.open_topic(topic).span(0)[1] for topic in topics)


def check(connection: ps.Connection, events: list[Event]) -> None:
    def rows(topic: str) -> list[Any]:
        found = [json.loads(record.value or b"null") for record in connection.read(topic)]
        return [row for row in found if row.get("who") != "end" and row.get("id", 0) >= 0]

    ids = sorted(event.id for event in events)
    for topic, is_big in (("big", True), ("small", False)):
        assert sorted(row["id"] for row in rows(topic)) == sorted(e.id for e in events if (e.amount >= 50) is is_big)
    amounts = collections.defaultdict(list)
    for event in events:
        amounts[event.who].append(event.amount)
    last = {row["who"]: (row["count"], row["min"], row["max"]) for row in rows("summaries")}
    assert last == {who: (len(each), min(each), max(each)) for who, each in amounts.items()}
    assert sorted(row["id"] for row in rows("unique")) == sorted(set(ids))
    ordered = rows("ordered")
    assert sorted(row["id"] for row in ordered) == ids
    for who in PEOPLE:
        times = [datetime.datetime.fromisoformat(row["at"]) for row in ordered if row["who"] == who]
        assert times == sorted(times)
