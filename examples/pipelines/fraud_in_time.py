"""Judge each transaction within 20 ms, with three analysers on Spark and a presenter that does not wait for them.

    python examples/pipelines/fraud_in_time.py [--transactions N] [--database postgresql://...] [URL]

Three queries in Spark's real-time mode read the transactions and write scores: by the amount, by the distance from the
card's home, and by how often the card was used within a minute. The presenter gathers the scores of each transaction.
Its verdict is complete when all three are there in time; 15 ms after the transaction was sent, it is given without
those that are missing, and names them, so that 5 ms are left for its way. Scores that come later follow on a topic of
their own.

With --database, a fourth query writes the verdicts to PostgreSQL as they come, each once.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import penstock as ps
from penstock.spark import Pipeline, RealTime, SqlTable, session
from penstock.typing import Result

WITHIN_MS, GATHERED_MS = 20, 15
ANALYSERS = ("amount", "distance", "velocity")
RATE = 100
WARM_UP, MOST_WARM_UPS = 100, 40
"""Transactions before those that are counted, until most verdicts are complete: Spark first compiles its queries."""
CARDS = 60
PATIENCE_S = 180.0
SLOTS = 8

LARGE_CENTS, FAR_KM, QUICK = 500_000, 1_000, 3
BLOCK = 60


@dataclasses.dataclass
class Transaction:
    id: int
    card: str
    cents: int
    km_from_home: int
    at: datetime.datetime


@dataclasses.dataclass
class Score:
    transaction: int
    analyser: str
    points: int


@dataclasses.dataclass
class Verdict:
    transaction: int
    verdict: str
    points: int
    label: str
    missing: str


transactions = ps.Topic("transactions", Transaction, key=lambda each: each.card, partitions=1)
scores = ps.Topic("scores", Score, key=lambda each: str(each.transaction), partitions=1)
verdicts = ps.Topic("verdicts", Verdict, key=lambda each: str(each.transaction), partitions=1)

TRANSACTION = "id bigint, card string, cents bigint, km_from_home bigint, at timestamp"
VERDICT = "transaction bigint, verdict string, points bigint, label string, missing string"


def generate(seed: int, count: int, first: int = 0) -> list[Transaction]:
    """Every tenth card is misused: far from home, often, for large amounts."""
    chance = random.Random(seed)
    made = []
    for number in range(first, first + count):
        stolen = chance.random() < 0.25
        card = chance.randrange(0, CARDS, 10) if stolen else chance.randrange(CARDS)
        cents, km = (chance.randrange(700_000), chance.randrange(2_000)) if stolen else (chance.randrange(20_000), 10)
        made.append(Transaction(number, f"card-{card}", cents, km, datetime.datetime.now(datetime.UTC)))
    return made


def analysers(url: str, database: str | None = None, batch: str = "5 minutes") -> Pipeline:
    """A query for each analyser; a score is written to the partition of its transaction."""
    # Slots are threads, which wait most of the time. One task behind the shuffle is enough for one partition.
    spark = session("fraud-in-time", master=f"local[{SLOTS}]", conf={"spark.sql.shuffle.partitions": "1"})
    pipeline = Pipeline("fraud-in-time", url, engine="native", spark=spark, client={"acks": 1})
    parsed = F.from_json(F.col("value").cast("string"), TRANSACTION)
    rows = pipeline.read("transactions").select(parsed.alias("it"), "partition").select("it.*", "partition")
    rows = rows.where("id is not null")
    when = RealTime(batch)

    def write(frame: DataFrame, name: str, points: Column) -> None:
        score = (F.col("id").alias("transaction"), F.lit(name).alias("analyser"), points.cast("long").alias("points"))
        scored = frame.select(*score, "partition")
        pipeline.write(scored, scores.name, name=name, key="transaction", guarantee="at-least-once", trigger=when)

    write(rows, "amount", F.when(F.col("cents") > LARGE_CENTS, 60).otherwise(0))
    write(rows, "distance", F.when(F.col("km_from_home") > FAR_KM, 50).otherwise(0))
    uses = (
        rows.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "card")
        .agg(F.count("*").alias("times"), F.max("id").alias("id"), F.max("partition").alias("partition"))
    )
    write(uses, "velocity", F.least(F.lit(60), F.greatest(F.lit(0), F.col("times") - QUICK) * 10))
    if database is not None:
        decided = F.from_json(F.col("value").cast("string"), VERDICT)
        table = pipeline.read("verdicts").select(decided.alias("it")).select("it.*")
        pipeline.write(table, SqlTable(database, "verdicts"), name="table", trigger=when)
    return pipeline


def presenter(url: str, acks: Literal[1, "all"] = "all") -> ps.App:
    """Gives the verdicts."""
    app = ps.App(url, group="presenter", acks=acks)

    @app.gather(
        transactions,
        scores,
        to=verdicts,
        late="late-scores",
        within_ms=GATHERED_MS,
        expected=ANALYSERS,
        request_id=lambda transaction: transaction.id,
        answer_to=lambda score: (score.transaction, score.analyser),
    )
    def judge(transaction: Transaction, result: Result) -> Verdict:
        points = sum(score.points for score in result.answers.values())
        verdict = "block" if points >= BLOCK else "clear"
        return Verdict(transaction.id, verdict, points, result.label, " ".join(result.missing))

    return app


def run(url: str, database: str | None, count: int, seed: int = 7) -> None:
    with ps.connect(url, linger_ms=0) as stream:
        for topic in (transactions, scores, verdicts):
            if topic.name not in stream.topics():
                stream.create_topic(topic.name, topic.partitions)
        earlier = sum(1 for _ in stream.read("transactions"))
        with analysers(url, database) as pipeline, presenter(url) as app:
            pipeline.start()
            app.start()
            first = warm_up(stream, pipeline, seed, earlier)
            measured = generate(seed + 1, count, first)
            send(stream, measured)
            wait_for_scores(stream, pipeline, measured)
            wanted = {each.id for each in measured}
            found = await_verdicts(stream, pipeline, wanted)
            if database is not None:
                await_rows(database, pipeline, wanted)
            pipeline.stop()
            decoded = (scores.decode(record.value) for record in stream.read("late-scores"))
            show(found, sum(score is not None and score.transaction in wanted for score in decoded), database)


def warm_up(stream: ps.Connection, pipeline: Pipeline, seed: int, first: int) -> int:
    """Send transactions until nine of ten verdicts are complete; give up soon, and return the next number."""
    for _ in range(MOST_WARM_UPS):
        made = generate(seed, WARM_UP, first)
        first += WARM_UP
        send(stream, made)
        found = await_verdicts(stream, pipeline, {each.id for each in made})
        if sum(verdict.label == "complete" for verdict, _ in found) >= 0.9 * WARM_UP:
            break
    return first


def send(stream: ps.Connection, made: Sequence[Transaction]) -> None:
    """At a steady rate."""
    next_s = time.perf_counter()
    for each in made:
        stream.send(transactions, dataclasses.replace(each, at=datetime.datetime.now(datetime.UTC)))
        next_s += 1 / RATE
        time.sleep(max(0.0, next_s - time.perf_counter()))
    stream.flush(timeout_s=60)


def wait_for_scores(stream: ps.Connection, pipeline: Pipeline, made: Iterable[Transaction]) -> None:
    wanted = {(each.id, name) for each in made for name in ANALYSERS}

    def missing() -> set[tuple[int, str]]:
        return wanted - {
            (score.transaction, score.analyser)
            for record in stream.read("scores")
            if (score := scores.decode(record.value)) is not None
        }

    wait_until(pipeline, "scores", missing)


def await_verdicts(stream: ps.Connection, pipeline: Pipeline, wanted: set[int]) -> list[tuple[Verdict, int]]:
    """The verdicts, and how many milliseconds after its transaction each was stored."""
    found: dict[int, tuple[Verdict, int]] = {}

    def missing() -> set[int]:
        sent_ms = {
            transaction.id: record.timestamp_ms or 0
            for record in stream.read("transactions")
            if (transaction := transactions.decode(record.value)) is not None
        }
        for record in stream.read("verdicts"):
            verdict = verdicts.decode(record.value)
            if verdict is not None and verdict.transaction in wanted:
                took_ms = (record.timestamp_ms or 0) - sent_ms[verdict.transaction]
                found.setdefault(verdict.transaction, (verdict, took_ms))
        return wanted - found.keys()

    wait_until(pipeline, "verdicts", missing)
    return list(found.values())


def await_rows(database: str, pipeline: Pipeline, wanted: set[int]) -> None:
    import psycopg

    def missing() -> set[int]:
        with psycopg.connect(database) as connection:
            return wanted - {number for (number,) in connection.execute("SELECT transaction FROM verdicts")}

    wait_until(pipeline, "rows", missing)


def wait_until(pipeline: Pipeline, what: str, missing: Callable[[], Collection[object]]) -> None:
    until = time.monotonic() + PATIENCE_S
    while left := missing():
        pipeline.wait(0.2)
        if time.monotonic() > until:
            raise TimeoutError(f"{len(left):,} {what} are not there after {PATIENCE_S:g} s")


def show(found: Sequence[tuple[Verdict, int]], late: int, database: str | None) -> None:
    labels = Counter(verdict.label for verdict, _ in found)
    in_time = sum(took_ms <= WITHIN_MS for _, took_ms in found)
    print(f"{len(found):,} transactions judged: {labels['complete']:,} complete, {labels['partial']:,} partial")
    print(f"{in_time / len(found):.1%} of the verdicts were decided within {WITHIN_MS} ms")
    absent = Counter(name for verdict, _ in found for name in verdict.missing.split())
    for name in ANALYSERS:
        print(f"{name:>9}: missing in {absent[name]:,} verdicts")
    print(f"{late:,} late scores followed{'' if database is None else ', and every verdict is in PostgreSQL'}")


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("url", nargs="?")
    given.add_argument("--transactions", type=int, default=1_000)
    given.add_argument("--database")
    told = given.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(told.url or f"log:{Path(scratch) / 'data'}", told.database, told.transactions)


if __name__ == "__main__":
    main()
