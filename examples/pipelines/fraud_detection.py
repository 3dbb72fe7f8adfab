"""Find misused cards: four analysers, an aggregator, and verdicts in a database or, in milliseconds, in a topic.

    python examples/pipelines/fraud_detection.py [--real-time] [URL]

Three analysers judge each transaction by its amount, its distance from the card's home, and its merchant; the fourth
counts how often a card was used within a minute. The aggregator adds up their scores for a card and a minute, and gives
a verdict. Cards and merchants are topics that can be updated while the pipeline runs.

In batches the verdicts are rows of a SQLite table, exactly once. With --real-time the same frame runs in Spark's
real-time mode, which writes each verdict to the topic `verdicts` as soon as a transaction changes it.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps
from penstock.spark import Pipeline, RealTime, SqlTable, session

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
TRANSACTIONS = 2_000
CARDS = 60
MERCHANTS = 25
MINUTES = 10
PATIENCE_S = 120.0

LARGE_CENTS, MEDIUM_CENTS = 500_000, 100_000
FAR_KM = 1_000
QUICK = 3
"""How often a card may be used within a minute."""
BLOCK, REVIEW = 100, 60


@dataclasses.dataclass
class Transaction:
    id: int
    card: str
    merchant: str
    cents: int
    x_km: int
    y_km: int
    at: datetime.datetime


@dataclasses.dataclass
class Card:
    card: str
    home_x_km: int
    home_y_km: int


@dataclasses.dataclass
class Merchant:
    merchant: str
    risk: int


transactions = ps.Topic("transactions", Transaction, key=lambda each: each.card, partitions=1)
cards = ps.Topic("cards", Card, key=lambda each: each.card, partitions=1)
merchants = ps.Topic("merchants", Merchant, key=lambda each: each.merchant, partitions=1)

JSON_OF_A_TRANSACTION = "id bigint, card string, merchant string, cents bigint, x_km bigint, y_km bigint, at timestamp"


def generate(seed: int) -> tuple[list[Transaction], list[Card], list[Merchant]]:
    """Transactions, cards and merchants; every tenth card is misused: far from home, often, for large amounts."""
    chance = random.Random(seed)
    owned = [Card(f"card-{n}", chance.randrange(-300, 300), chance.randrange(-300, 300)) for n in range(CARDS)]
    shops = [Merchant(f"shop-{n}", chance.choice((0, 0, 0, 10, 30))) for n in range(MERCHANTS)]
    made = []
    for number in range(TRANSACTIONS):
        at = NOON + datetime.timedelta(seconds=MINUTES * 60 * number / TRANSACTIONS)
        stolen = chance.random() < 0.25
        card = chance.choice(owned[::10] if stolen else owned)
        away = chance.randrange(2_000) if stolen else chance.randrange(100)
        cents = chance.randrange(700_000) if stolen else chance.randrange(1, 20_000)
        shop = chance.choice(shops).merchant
        made.append(Transaction(number, card.card, shop, cents, card.home_x_km + away, card.home_y_km, at))
    return made, owned, shops


def judged(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """The verdicts of the analysers and the aggregator: a row for each card and minute.

    Spark's own functions only, and joins with tables that go to every task: so it runs in real-time mode, too.
    """
    home = F.broadcast(pipeline.table(cards).select("card", "home_x_km", "home_y_km"))
    known = F.broadcast(pipeline.table(merchants).select("merchant", "risk"))
    away_km = F.sqrt(F.pow(F.col("x_km") - F.col("home_x_km"), 2) + F.pow(F.col("y_km") - F.col("home_y_km"), 2))
    amount = F.when(F.col("cents") > LARGE_CENTS, 60).when(F.col("cents") > MEDIUM_CENTS, 25).otherwise(0)
    analysed = (
        rows.join(home, "card", "left")
        .join(known, "merchant", "left")
        .withColumn("amount", amount)
        .withColumn("distance", F.when(away_km > FAR_KM, 50).otherwise(0))
        .withColumn("merchant_risk", F.coalesce("risk", F.lit(20)))
    )
    timed = pipeline.on_time(analysed, "at", window="1 minute", grace="1 hour")
    by_minute = timed.groupBy(F.window("at", "1 minute").alias("time"), "card").agg(
        F.count("*").alias("transactions"),
        F.sum("cents").alias("cents"),
        F.max("amount").alias("amount"),
        F.max("distance").alias("distance"),
        F.max("merchant_risk").alias("merchant_risk"),
    )
    velocity = F.least(F.lit(60), F.greatest(F.lit(0), F.col("transactions") - QUICK) * 10)
    points = F.col("amount") + F.col("distance") + F.col("merchant_risk") + F.col("velocity")
    verdict = F.when(F.col("points") >= BLOCK, "block").when(F.col("points") >= REVIEW, "review").otherwise("clear")
    return by_minute.withColumn("velocity", velocity).select(
        "card",
        F.col("time.start").alias("minute"),
        "transactions",
        "cents",
        "amount",
        "distance",
        "merchant_risk",
        "velocity",
        points.alias("points"),
    ).withColumn("verdict", verdict)  # fmt: skip


def in_batches(url: str, database: str) -> Pipeline:
    pipeline = Pipeline("fraud", url)
    rows = pipeline.read(transactions, max_records_per_batch=500)
    pipeline.write(judged(pipeline, rows), SqlTable(database, "verdicts", key=("card", "minute")), mode="update")
    return pipeline


def in_real_time(url: str, batch: str = "5 minutes") -> Pipeline:
    spark = session("fraud", master="local[4]")  # slots are threads there: one for each task that runs all the time
    pipeline = Pipeline("fraud-real-time", url, engine="native", spark=spark)
    parsed = F.from_json(F.col("value").cast("string"), JSON_OF_A_TRANSACTION)
    rows = pipeline.read("transactions").select(parsed.alias("parsed")).select("parsed.*").where("id is not null")
    verdicts = judged(pipeline, rows)
    pipeline.write(verdicts, "verdicts", key=("card", "minute"), guarantee="at-least-once", trigger=RealTime(batch))
    return pipeline


def run_in_batches(url: str, database: str, made: list[Transaction]) -> list[dict[str, Any]]:
    """The verdicts in the database after two runs of the pipeline, each with new transactions."""
    with ps.connect(url) as stream:
        for part in (made[: len(made) // 2], made[len(made) // 2 :]):
            for each in part:
                stream.send(transactions, each)
            stream.flush(timeout_s=60)
            with in_batches(url, database) as pipeline:
                pipeline.run(once=True)
    with sqlite3.connect(database.removeprefix("sqlite:")) as rows:
        rows.row_factory = sqlite3.Row
        return [dict(row) for row in rows.execute("select * from verdicts")]


def run_in_real_time(url: str, made: list[Transaction]) -> list[dict[str, Any]]:
    """The last verdict of each card and minute, once they cover all transactions, and the latency of each."""
    with ps.connect(url) as stream, in_real_time(url) as pipeline:
        pipeline.start()
        for each in made:
            stream.send(transactions, each)
        stream.flush(timeout_s=60)
        until = time.monotonic() + PATIENCE_S
        while sum(row["transactions"] for row in latest(stream)) < len(made):
            pipeline.wait(0.1)
            if time.monotonic() > until:
                raise TimeoutError(f"not all verdicts are there after {PATIENCE_S:g} s")
        pipeline.stop()
        return latest(stream)


def latest(stream: ps.Connection) -> list[dict[str, Any]]:
    """The last verdict of each card and minute."""
    found: dict[bytes | None, dict[str, Any]] = {}
    if "verdicts" in stream.topics():
        for record in stream.read("verdicts"):
            found[record.key] = json.loads(record.value or b"null")
    return list(found.values())


def main(url: str, folder: str, real_time: bool, seed: int = 7) -> None:
    made, owned, shops = generate(seed)
    with ps.connect(url) as stream:
        if transactions.name not in stream.topics():
            stream.create_topic(transactions.name, transactions.partitions)
        for card in owned:
            stream.send(cards, card)
        for shop in shops:
            stream.send(merchants, shop)
        stream.flush(timeout_s=60)
    rows = run_in_real_time(url, made) if real_time else run_in_batches(url, f"sqlite:{folder}/fraud.db", made)
    verdicts = Counter(row["verdict"] for row in rows)
    print(f"{sum(row['transactions'] for row in rows):,} transactions, {len(rows):,} verdicts: {dict(verdicts)}")
    for row in sorted(rows, key=lambda row: (-row["points"], row["card"], str(row["minute"])))[:5]:
        analysers = ", ".join(f"{name} {row[name]}" for name in ("amount", "distance", "merchant_risk", "velocity"))
        print(f"{row['verdict']:>6} {row['card']:<8} {row['points']:>4} points: {analysers}")


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--real-time"]
    with tempfile.TemporaryDirectory() as scratch:
        main(given[0] if given else f"log:{Path(scratch) / 'data'}", scratch, "--real-time" in sys.argv)
