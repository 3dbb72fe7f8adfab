"""A program of the patterns that no worked case has, for a test that kills it:

    python -m tests.spark.patterns.killed_program URL PART DATABASE

It processes what is there, in small batches, and ends. What it writes is told apart by topic. PART is "events" for the
patterns of single events and short windows, "state" for those that keep tables and sequences.
"""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence

from pyspark.sql import Row

import penstock as ps
from penstock.spark import Pipeline, SqlState, TopicTarget, session
from penstock.spark.patterns import (
    enrich_as_of,
    in_order,
    join_tables,
    moving,
    route,
    sequence,
    summary,
    without_duplicates,
)
from penstock.spark.tables import as_changelog

GRACE = "10 seconds"
WITHIN = "20 seconds"
PER_BATCH = 140


@dataclasses.dataclass
class Event:
    id: int
    who: str
    amount: int
    at: datetime.datetime


@dataclasses.dataclass
class Person:
    who: str
    city: str
    since: datetime.datetime


@dataclasses.dataclass
class Tally:
    who: str
    events: int
    amount: int


EVENTS = ps.Topic("events", Event)
CHANGES = ps.Topic("people", Person)


def build(url: str, part: str, database: str) -> Pipeline:
    spark = session(
        "patterns", master="local[2]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    pipe = Pipeline("patterns", url, spark=spark)
    given = pipe.read(EVENTS, max_records_per_batch=PER_BATCH)
    events = given.select("id", "who", "amount", "at")
    timely = pipe.on_time(events, "at", grace=GRACE)
    if part == "events":
        pipe.write(
            route(events, {"big": "amount >= 50"}, otherwise="small", key="who"), TopicTarget(url, None), name="route"
        )
        pipe.write(summary(events, "who", "amount"), "summaries", key="who", mode="update")
        pipe.write(without_duplicates(timely.select("id", "at"), "id").select("id"), "unique")
        pipe.write(in_order(timely.select("id", "who", "at"), "who", "at"), "ordered", key="who", partitions=1)
        return pipe
    people = pipe.read(CHANGES)
    pipe.write(enrich_as_of(timely, people, "who", "at", "since", columns=["city"]), "as_of", key="who")
    current = join_tables(given.select("id", "who", "amount", "pointer"), people, "who", key="id", columns=["city"])
    pipe.write(as_changelog(current, "id"), "joined")
    steps = ["amount >= 50", "amount < 50", "amount >= 50"]
    pipe.write(sequence(timely, "who", "at", steps, WITHIN), "sequences", key="who")
    pipe.write(moving(timely, "who", "at", WITHIN, {"total": ("sum", "amount")}), "moving", key="who")
    for name in ("tally", "second_tally"):  # both into one table
        pipe.write(events, SqlState(database, "tallies", add, Tally, key="who"), name=name)
    return pipe


def add(tally: Tally | None, events: Sequence[Row]) -> Tally:
    before = tally or Tally(events[0].who, 0, 0)
    return Tally(before.who, before.events + len(events), before.amount + sum(event.amount for event in events))


if __name__ == "__main__":
    with build(*sys.argv[1:]) as pipeline:
        pipeline.run(once=True)
