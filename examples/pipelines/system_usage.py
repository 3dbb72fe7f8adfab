"""Count transactions per system and minute, exactly once, and keep late ones apart.

    python examples/pipelines/system_usage.py [URL]

Transactions come from many gateways, so a few of them arrive long after their minute was closed. They are not dropped
but go to the topic `transactions.late`: every transaction is in one of the two results, once. The pipeline is stopped
in the middle and restarted, as in a deployment, without an effect on the counts.

Without a URL it uses an embedded log in a temporary folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import sys
import tempfile
from typing import Any

from pyspark.sql import functions as F

import penstock as ps
from penstock.spark import Pipeline
from penstock.spark.windows import tumbling

SYSTEMS = ("android", "ios", "web", "terminal")
TRANSACTIONS = 5_000
MINUTES = 20
DAY = datetime.timedelta(days=1)


@dataclasses.dataclass
class Transaction:
    number: int
    system: str
    cents: int
    at: datetime.datetime


transactions = ps.Topic("transactions", Transaction, key=lambda each: each.number)


def build(url: str) -> Pipeline:
    pipeline = Pipeline("system-usage", url)
    rows = pipeline.read(transactions, max_records_per_batch=1_000)
    on_time = pipeline.on_time(rows, "at", window="1 minute", grace="1 minute", late="transactions.late")
    usage = on_time.groupBy(tumbling("at", "1 minute"), "system").agg(
        F.count("*").alias("transactions"), F.sum("cents").alias("cents")
    )
    pipeline.write(usage, "usage", key="system")
    return pipeline


def generate(seed: int, begin: datetime.datetime) -> list[Transaction]:
    """Transactions in the order in which they arrive: most a few seconds late, one in fifty by many minutes."""
    chance = random.Random(seed)
    made = []
    for number in range(TRANSACTIONS):
        second = MINUTES * 60 * number / TRANSACTIONS
        delay = chance.uniform(300, 900) if chance.random() < 0.02 else chance.uniform(0, 20)
        at = begin + datetime.timedelta(seconds=max(0.0, second - delay))
        made.append(Transaction(number, chance.choice(SYSTEMS), chance.randrange(100, 20_000), at))
    return made


def main(url: str, seed: int = 7) -> None:
    with ps.connect(url) as stream:
        stream.admin().provide(transactions.name, 2, {})
        begin = next_day(stream)
        made = generate(seed, begin)
        process(stream, made[: TRANSACTIONS // 2])
        process(stream, made[TRANSACTIONS // 2 :])
        # A minute is final when time has moved past it and its grace. Here nothing comes to move it but this.
        process(stream, [Transaction(-1, "clock", 0, begin + DAY / 2)])
        usage = of_day(stream, "usage", begin, lambda row: row["window"]["start"])
        late = of_day(stream, "transactions.late", begin, lambda row: row["at"])
    show(usage, late)


def process(stream: ps.Connection, arrived: list[Transaction]) -> None:
    """Send the arrived records, and run the pipeline until it has caught up."""
    for each in arrived:
        stream.send(transactions, each)
    stream.flush(timeout_s=60)
    with build(stream.url) as pipeline:
        pipeline.run(once=True)


def next_day(stream: ps.Connection) -> datetime.datetime:
    """The noon after everything that was sent before, so that the example can be run again on the same stream."""
    first = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    before = (transactions.decode(record.value) for record in stream.read(transactions.name))
    return max(
        (each.at.replace(hour=12, minute=0, second=0, microsecond=0) + DAY for each in before if each), default=first
    )


def of_day(stream: ps.Connection, topic: str, begin: datetime.datetime, time_of: Any) -> list[dict[str, Any]]:
    if topic not in stream.topics():
        return []
    rows = (json.loads(record.value or b"") for record in stream.read(topic))
    return [row for row in rows if begin <= datetime.datetime.fromisoformat(time_of(row)) < begin + DAY / 2]


def show(usage: list[dict[str, Any]], late: list[dict[str, Any]]) -> None:
    most = max(row["transactions"] for row in usage)
    for system in SYSTEMS:
        minutes = sorted((row for row in usage if row["system"] == system), key=lambda row: row["window"]["start"])
        bars = "".join("▁▂▃▄▅▆▇█"[(row["transactions"] * 8 - 1) // most] for row in minutes)
        count, cents = (sum(row[column] for row in minutes) for column in ("transactions", "cents"))
        print(f"{system:>9} {bars} {count:>6,} transactions {cents / 100:>12,.2f}")
    on_time = sum(row["transactions"] for row in usage)
    print(f"{on_time:,} on time and {len(late):,} late make {on_time + len(late):,} of {TRANSACTIONS:,}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
