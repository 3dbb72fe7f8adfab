"""A program of the patterns that no worked case has, for a test that kills it:

    python -m tests.spark.patterns.killed_program URL

It processes what is there, in small batches, and ends. What it writes is told apart by topic.
"""

from __future__ import annotations

import dataclasses
import datetime
import sys

import penstock as ps
from penstock.spark import Pipeline, TopicTarget, session
from penstock.spark.patterns import in_order, route, summary, without_duplicates

GRACE = "10 seconds"
PER_BATCH = 140


@dataclasses.dataclass
class Event:
    id: int
    who: str
    amount: int
    at: datetime.datetime


EVENTS = ps.Topic("events", Event)


def build(url: str) -> Pipeline:
    spark = session(
        "patterns", master="local[2]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    pipe = Pipeline("patterns", url, spark=spark)

    events = pipe.read(EVENTS, max_records_per_batch=PER_BATCH).select("id", "who", "amount", "at")
    timely = pipe.on_time(events, "at", grace=GRACE)
    pipe.write(
        route(events, {"big": "amount >= 50"}, otherwise="small", key="who"), TopicTarget(url, None), name="route"
    )
    pipe.write(summary(events, "who", "amount"), "summaries", key="who", mode="update")
    pipe.write(without_duplicates(timely.select("id", "at"), "id").select("id"), "unique")
    pipe.write(in_order(timely.select("id", "who", "at"), "who", "at"), "ordered", key="who", partitions=1)
    return pipe


if __name__ == "__main__":
    with build(sys.argv[1]) as pipeline:
        pipeline.run(once=True)
