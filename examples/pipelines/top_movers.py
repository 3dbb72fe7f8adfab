"""Rank the ten shares that moved most on each day: two stages, with a topic of one partition between them.

    python examples/pipelines/top_movers.py [URL]

No single task could rank all trades of a day. The first stage computes one row for each share and day, in parallel over
the partitions of `trades`, and writes these few rows to the topic `moves`, which has one partition. The second stage
ranks them. A day is ranked once, when the next day has been seen.

A run with `once` runs the second stage after the first; otherwise both stages run at the same time.

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
from penstock.spark.patterns import top_n
from penstock.spark.windows import tumbling

SYMBOLS = tuple(f"{a}{b}{c}" for a in "ABCD" for b in "KLMN" for c in "XYZ")
TRADES_A_DAY = 25
DAYS = 4
"""The day after the last has only its first trade, and stays open."""
DAY = datetime.timedelta(days=1)


@dataclasses.dataclass
class Trade:
    symbol: str
    cents: int
    at: datetime.datetime


@dataclasses.dataclass
class Move:
    day: datetime.datetime
    symbol: str
    percent: float


trades = ps.Topic("trades", Trade, key=lambda trade: trade.symbol)
moves = ps.Topic("moves", Move, key=lambda move: move.symbol)


def build(url: str) -> Pipeline:
    pipeline = Pipeline("top-movers", url)
    on_time = pipeline.on_time(pipeline.read(trades), "at", grace="1 hour")
    shares = on_time.groupBy(tumbling("at", "1 day"), "symbol").agg(
        F.min_by("cents", "at").alias("opened"), F.max_by("cents", "at").alias("closed")
    )
    percent = (F.col("closed") - F.col("opened")) / F.col("opened") * 100
    day = F.col("window.start").alias("day")
    pipeline.write(shares.select(day, "symbol", percent.alias("percent")), moves, partitions=1)

    days = pipeline.on_time(pipeline.read(moves), "day", grace="0 seconds")
    of_day = days.select(tumbling("day", "1 day").alias("window"), "symbol", "percent")
    pipeline.write(top_n(of_day, 10, by=F.abs("percent")), "movers", partitions=1)
    return pipeline


def generate(seed: int, begin: datetime.datetime) -> list[Trade]:
    """Trades in the order in which they arrive, up to ten minutes late; the last one opens one more day."""
    chance = random.Random(seed)
    arrived = []
    cents = {symbol: chance.randrange(500, 50_000) for symbol in SYMBOLS}
    for day in range(DAYS):
        for symbol in SYMBOLS:
            nerves = chance.uniform(0.001, 0.02)
            for at_s in sorted(chance.sample(range(9 * 3600, 17 * 3600), TRADES_A_DAY)):
                cents[symbol] = max(100, round(cents[symbol] * chance.gauss(1, nerves)))
                at = begin + day * DAY + datetime.timedelta(seconds=at_s)
                arrived.append(
                    (at + datetime.timedelta(seconds=chance.uniform(0, 600)), Trade(symbol, cents[symbol], at))
                )
    arrived.sort(key=lambda each: each[0])
    opening = begin + DAYS * DAY + datetime.timedelta(hours=9)
    return [*(trade for _, trade in arrived), Trade(SYMBOLS[0], cents[SYMBOLS[0]], opening)]


def main(url: str, seed: int = 7) -> None:
    with ps.connect(url) as stream:
        stream.admin().provide(trades.name, 4, {})
        begin = next_day(stream)
        made = generate(seed, begin)
        half = len(made) // 2
        for arrived in (made[:half], made[half:]):
            for trade in arrived:
                stream.send(trades, trade)
            stream.flush(timeout_s=60)
            with build(url) as pipeline:
                pipeline.run(once=True)
        rows = [json.loads(record.value or b"") for record in stream.read("movers")]
    show([row for row in rows if day_of(row) >= begin])


def next_day(stream: ps.Connection) -> datetime.datetime:
    """The day after all records sent before, so that the example can be run again on the same stream."""
    first = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)
    before = (trades.decode(record.value) for record in stream.read(trades.name))
    return max((each.at.replace(hour=0, minute=0, second=0) + DAY for each in before if each), default=first)


def day_of(row: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(row["window"]["start"])


def show(movers: list[dict[str, Any]]) -> None:
    for row in sorted(movers, key=lambda row: (day_of(row), row["rank"])):
        if row["rank"] == 1:
            print(f"\n{day_of(row):%A, %d %B %Y}")
        bar = ("▲" if row["percent"] > 0 else "▼") * max(1, round(abs(row["percent"])))
        print(f"{row['rank']:>4}  {row['symbol']}  {row['percent']:>+7.2f} %  {bar}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
