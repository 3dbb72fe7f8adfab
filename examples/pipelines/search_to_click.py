"""Find the searches that led to a click within ten seconds, and those that did not: a join of streams by user and time.

    python examples/pipelines/search_to_click.py [URL]

Searches and clicks are in separate topics, arrive out of order, and some clicks arrive twice. Each pair of a search and
a following click is a result; so is a search without a click, once none can arrive any more. The pipeline is stopped
in the middle and restarted: pairs whose halves arrive before and after the restart are still found.

Without a URL it uses an embedded log in a temporary folder.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import sys
import tempfile
from collections import Counter
from typing import Any

import penstock as ps
from penstock.spark import Pipeline
from penstock.spark.patterns import join_within, without_duplicates

SEARCHES = 1_000
MINUTES = 20
USERS = 60
CHANCE_OF_A_CLICK = {"tea": 0.9, "kettle": 0.7, "cup": 0.5, "samovar": 0.2}
DAY = datetime.timedelta(days=1)


@dataclasses.dataclass
class Search:
    number: int
    user: str
    words: str
    at: datetime.datetime


@dataclasses.dataclass
class Click:
    number: int
    user: str
    page: str
    at: datetime.datetime


searches = ps.Topic("searches", Search, key=lambda search: search.user)
clicks = ps.Topic("result-clicks", Click, key=lambda click: click.user)


def build(url: str) -> Pipeline:
    pipeline = Pipeline("search-to-click", url)
    searched = pipeline.on_time(pipeline.read(searches), "at", grace="1 minute")
    clicked = pipeline.on_time(pipeline.read(clicks), "at", grace="1 minute")
    pairs = join_within(
        searched.select("number", "user", "words", "at"),
        without_duplicates(clicked.select("number", "user", "page", "at"), "number"),
        on="user",
        left_time="at",
        right_time="at",
        within="10 seconds",
        unmatched="left",
        right_prefix="click_",
    )
    pipeline.write(pairs, "searches.followed", key="user")
    return pipeline


def generate(seed: int, begin: datetime.datetime) -> list[Search | Click]:
    """Searches and clicks in the order in which they arrive, up to 20 seconds late, some clicks twice."""
    chance = random.Random(seed)
    arrived: list[tuple[float, Search | Click]] = []

    def arrive(event: Search | Click) -> None:
        arrived.append(((event.at - begin).total_seconds() + chance.uniform(0, 20), event))

    for number in range(SEARCHES):
        words, user = chance.choice(list(CHANCE_OF_A_CLICK)), f"user-{chance.randrange(USERS)}"
        second = MINUTES * 60 * number / SEARCHES
        at = begin + datetime.timedelta(seconds=round(second, 3))
        arrive(Search(number, user, words, at))
        if chance.random() < CHANCE_OF_A_CLICK[words]:
            pause = datetime.timedelta(seconds=round(min(60.0, chance.expovariate(1 / 4)), 3))
            click = Click(number, user, f"{words}-{chance.randrange(5)}.html", at + pause)
            for _ in range(2 if chance.random() < 0.2 else 1):
                arrive(click)
    return [event for _, event in sorted(arrived, key=lambda each: each[0])]


def main(url: str, seed: int = 7) -> None:
    with ps.connect(url) as stream:
        for topic in (searches, clicks):
            stream.admin().provide(topic.name, 2, {})
        begin = next_day(stream)
        made = generate(seed, begin)
        process(stream, made[: len(made) // 2])
        process(stream, made[len(made) // 2 :])
        # That no click will come is certain when the time of both streams has moved on. Here nothing comes but this.
        later = begin + DAY / 2
        process(stream, [Search(-1, "clock", "", later), Click(-1, "clock", "", later)])
        rows = [json.loads(record.value or b"") for record in stream.read("searches.followed")]
    show([row for row in rows if begin <= datetime.datetime.fromisoformat(row["at"]) < later])


def process(stream: ps.Connection, arrived: list[Search | Click]) -> None:
    """Send the arrived records, and run the pipeline until it has caught up."""
    for event in arrived:
        if isinstance(event, Search):
            stream.send(searches, event)
        else:
            stream.send(clicks, event)
    stream.flush(timeout_s=60)
    with build(stream.url) as pipeline:
        pipeline.run(once=True)


def next_day(stream: ps.Connection) -> datetime.datetime:
    """The noon after everything that was sent before, so that the example can be run again on the same stream."""
    first = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    before = (searches.decode(record.value) for record in stream.read(searches.name))
    return max(
        (each.at.replace(hour=12, minute=0, second=0, microsecond=0) + DAY for each in before if each), default=first
    )


def show(rows: list[dict[str, Any]]) -> None:
    words_of = {row["number"]: row["words"] for row in rows}
    followed = {row["number"] for row in rows if row["click_number"] is not None}
    searched, led = Counter(words_of.values()), Counter(words_of[number] for number in followed)
    print(f"{'words':<8} {'searches':>8}  followed by a click")
    for words in sorted(searched, key=lambda each: led[each] / searched[each], reverse=True):
        share = led[words] / searched[words]
        print(f"{words:<8} {searched[words]:>8}  {'█' * round(share * 20):<20} {led[words]:>4} {share:>4.0%}")
    print(f"{len(words_of):,} searches: {len(followed):,} led to a click, {len(words_of) - len(followed):,} to none")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
