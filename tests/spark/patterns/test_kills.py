"""Patterns in a program that is killed while it is at some of them: every result is there once, and right.

The other patterns (ranking, looking up, joining) are killed in the worked cases, tests/spark/examples.
"""

from __future__ import annotations

import collections
import datetime
import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock as ps
from tests.postgres import shared_postgres
from tests.sampling import sample
from tests.seeds import seed_of
from tests.spark.killing import run_until
from tests.spark.patterns.killed_program import CHANGES, EVENTS, Event, Person
from tests.spark.patterns.models import Change, as_of, matches

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
PEOPLE = ("ann", "bob", "cid")
CITIES = ("Oslo", "Rome", "Lima")
COUNT = 240
WITHIN_S = 20
STAGES = {
    "events": (("big", "small", "summaries"), ("unique", "ordered")),
    "state": (("as_of", "joined"), ("sequences", "moving")),
}
"""What two cores work at together, by the part of the program: a run takes two queries at a time."""
PROGRAM = ("-m", "tests.spark.patterns.killed_program")


@pytest.mark.xdist_group("spark-cluster")  # it has JVMs of its own
@pytest.mark.sampled(1, among="killed drivers")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", list(STAGES))
def test_patterns_are_exact_though_the_program_is_killed(
    log_url: str, connection: ps.Connection, tmp_path: Path, part: str
) -> None:
    chance = random.Random(seed_of())
    events, people = made(chance), moves(chance)
    connection.create_topic("events", 2)
    connection.create_topic("people", 1)
    for topics in STAGES[part]:
        for topic in topics:
            connection.create_topic(topic, 1)
    for person in people:
        connection.send(CHANGES, person, partition=0)
    for number, event in enumerate(events):
        # Both partitions come to the same time in each batch: were one far ahead, rows of the other would be late.
        connection.send(EVENTS, event, partition=number % 2)
    connection.flush(timeout_s=60)
    database = shared_postgres().fresh_database() if part == "state" else "sqlite:"
    arguments = [*PROGRAM, log_url, part, database]
    for killed_at in sample(STAGES[part], 1):
        assert run_until(written(connection, killed_at), arguments, tmp_path), "it ended before it was killed"
    assert not run_until(None, arguments, tmp_path)
    kept = [event for event in events if event.who != "end"]
    if part == "events":
        check(connection, kept)
    else:
        check_state(connection, kept, people)
        check_tallies(database, kept)


def moves(chance: random.Random) -> list[Person]:
    """Who lived where since when, in any order. One of the people lives nowhere."""
    return [
        Person(
            chance.choice(PEOPLE[:2]), chance.choice(CITIES), NOON + datetime.timedelta(seconds=chance.uniform(0, 200))
        )
        for _ in range(12)
    ]


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


def rows_of(connection: ps.Connection, topic: str) -> list[Any]:
    found = [json.loads(record.value or b"null") for record in connection.read(topic)]
    return [row for row in found if row.get("who") != "end" and row.get("id", 0) >= 0]


def check(connection: ps.Connection, events: list[Event]) -> None:
    rows = functools.partial(rows_of, connection)
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


def check_state(connection: ps.Connection, events: list[Event], people: list[Person]) -> None:
    rows = functools.partial(rows_of, connection)
    cities: dict[str, list[Change]] = {
        who: [(person.since.timestamp(), person.city) for person in people if person.who == who] for who in PEOPLE
    }
    assert sorted((row["id"], row["city"] or "") for row in rows("as_of")) == sorted(
        (event.id, as_of(cities[event.who], event.at.timestamp()) or "") for event in events
    )
    joined = {row["id"]: (row["who"], row["amount"], row["city"]) for row in rows("joined")}
    living = {who: moved[-1][1] for who, moved in cities.items() if moved}
    assert joined == {event.id: (event.who, event.amount, living[event.who]) for event in events if event.who in living}
    totals = collections.Counter((row["id"], row["total"]) for row in rows("moving"))
    assert totals == collections.Counter((event.id, before(event, events)) for event in events)
    for who in PEOPLE:
        own = [event for event in events if event.who == who]
        numbered = [
            (number, event.at.timestamp(), {0, 2} if event.amount >= 50 else {1}) for number, event in enumerate(own)
        ]
        wanted = matches(numbered, 3, WITHIN_S, adjacent=False, overlapping=False)
        found = [[each["id"] for each in row["events"]] for row in rows("sequences") if row["who"] == who]
        assert sorted(found) == sorted([own[number].id for number in match] for match in wanted)


def before(event: Event, events: list[Event]) -> int:
    since = event.at - datetime.timedelta(seconds=WITHIN_S)
    return sum(other.amount for other in events if other.who == event.who and since < other.at <= event.at)


def check_tallies(database: str, events: list[Event]) -> None:
    """Two queries have counted every event in the same rows."""
    wanted = {who: [event.amount for event in events if event.who == who] for who in PEOPLE}
    with psycopg.connect(database) as server:
        found = server.execute("SELECT who, events, amount FROM tallies WHERE who <> 'end'").fetchall()
    assert sorted(found) == sorted((who, 2 * len(each), 2 * sum(each)) for who, each in wanted.items())
