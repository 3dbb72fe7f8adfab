"""How much each system is used: transactions per system and minute, exactly once, with late ones set aside.

    python examples/pipelines/system_usage.py [URL]

Transactions come from many gateways, so a few of them arrive long after their minute was closed. They are not dropped:
they go to the topic `transactions.late`, and every transaction is in one place or the other, once. The pipeline is
stopped in the middle and started again, as a deployment would do; the counts do not show it.
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

SYSTEMS = ("android", "ios", "web", "terminal")
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
TRANSACTIONS = 5_000
MINUTES = 20


@dataclasses.dataclass
class Transaction:
    system: str
    cents: int
    at: datetime.datetime


transactions = ps.Topic("transactions", Transaction, key=lambda each: each.system, partitions=2)


def generate(seed: int) -> list[Transaction]:
    """Transactions in the order in which they arrive: most a few seconds late, one in fifty by many minutes."""
    chance = random.Random(seed)
    made = []
    for number in range(TRANSACTIONS):
        second = MINUTES * 60 * number / TRANSACTIONS
        delay = chance.uniform(300, 900) if chance.random() < 0.02 else chance.uniform(0, 20)
        at = NOON + datetime.timedelta(seconds=max(0.0, second - delay))
        made.append(Transaction(chance.choice(SYSTEMS), chance.randrange(100, 20_000), at))
    return made


def build(url: str) -> Pipeline:
    pipeline = Pipeline("system-usage", url)
    rows = pipeline.read(transactions, max_records_per_batch=1_000)
    on_time = pipeline.on_time(rows, "at", window="1 minute", grace="1 minute", late="transactions.late")
    usage = on_time.groupBy(F.window("at", "1 minute"), "system").agg(
        F.count("*").alias("transactions"), F.sum("cents").alias("cents")
    )
    pipeline.write(usage, "usage", key="system")
    return pipeline


def run_once(url: str) -> None:
    with build(url) as pipeline:
        pipeline.run(once=True)


def main(url: str, seed: int = 7) -> None:
    made = generate(seed)
    with ps.connect(url) as stream:
        for part in (made[: TRANSACTIONS // 2], made[TRANSACTIONS // 2 :]):
            for each in part:
                stream.send(transactions, each)
            stream.flush(timeout=60)
            run_once(url)
        # A window is final when time has moved past it; these two make it move.
        for hour in (1, 2):
            stream.send(transactions, Transaction("clock", 0, NOON + datetime.timedelta(hours=hour)))
            stream.flush(timeout=60)
            run_once(url)
        minutes = [json.loads(record.value or b"") for record in stream.read("usage")]
        late = sum(1 for _ in stream.read("transactions.late"))
    used = [row for row in minutes if row["system"] != "clock"]
    for system in SYSTEMS:
        rows = sorted((row for row in used if row["system"] == system), key=lambda row: row["window"]["start"])
        bars = "".join("▁▂▃▄▅▆▇█"[min(7, row["transactions"] // 12)] for row in rows)
        print(f"{system:>9} {bars} {total(rows, 'transactions'):>6,} transactions {total(rows, 'cents') / 100:>12,.2f}")
    print(f"{total(used, 'transactions'):,} on time and {late:,} late make {TRANSACTIONS:,}")
    assert total(used, "transactions") + late == TRANSACTIONS


def total(rows: list[dict[str, Any]], column: str) -> int:
    return sum(row[column] for row in rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
