"""Add user profiles to clicks: a stream joined to a table that changes while the pipeline runs.

    python examples/pipelines/click_enrichment.py [URL]

Profiles come as changes in a compacted topic: the last record of each user counts, and a record without a value deletes
the profile. No database is queried. While the pipeline runs, one user upgrades, one leaves and one signs up; later
clicks show the change without a restart. Clicks of unknown users are kept, without a profile.

Without a URL it uses an embedded log in a temporary folder.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import penstock as ps
from penstock.spark import Pipeline
from penstock.spark.patterns import enrich

CLICKS = 300
"""The number of clicks before the profiles change, and again after."""
PAGES = ("home", "prices", "manual", "forum")
WAIT_S = 180.0


@dataclasses.dataclass
class Profile:
    user: str
    age: int
    city: str
    plan: str


@dataclasses.dataclass
class Click:
    number: int
    user: str
    page: str


profiles = ps.Topic("profiles", Profile, key=lambda profile: profile.user)
clicks = ps.Topic("clicks", Click, key=lambda click: click.user)

BEFORE: Mapping[str, Profile | None] = {
    "ann": Profile("ann", 34, "Lyon", "free"),
    "ben": Profile("ben", 51, "Oslo", "paid"),
    "cem": Profile("cem", 27, "Izmir", "free"),
    "dia": Profile("dia", 45, "Porto", "paid"),
    "eve": None,
    "fay": None,
}
CHANGES: Mapping[str, Profile | None] = {
    "ann": Profile("ann", 34, "Lyon", "paid"),  # upgrades
    "ben": None,  # leaves
    "cem": Profile("cem", 28, "Bern", "free"),  # has a birthday, and moves
    "eve": Profile("eve", 19, "Graz", "free"),  # signs up
}


def build(url: str) -> Pipeline:
    pipeline = Pipeline("click-enrichment", url)
    clicked = pipeline.read(clicks).select("number", "user", "page")
    pipeline.write(enrich(clicked, pipeline.table(profiles), on="user"), "clicks.enriched", key="user")
    return pipeline


def generate(seed: int, first: int) -> list[Click]:
    chance = random.Random(f"{seed} {first}")
    users = sorted(BEFORE)
    return [Click(first + each, chance.choice(users), chance.choice(PAGES)) for each in range(CLICKS)]


def main(url: str, seed: int = 7) -> None:
    with ps.connect(url) as stream:
        stream.admin().provide(profiles.name, 2, {"cleanup.policy": "compact"})
        stream.admin().provide(clicks.name, 2, {})
        stream.admin().provide("clicks.enriched", 2, {})
        send_profiles(stream, BEFORE)
        with (
            build(url) as pipeline,
            stream.read("clicks.enriched", "latest", follow=True, timeout_s=WAIT_S) as enriched,
        ):
            pipeline.start()
            for title, changes, first in (("before", {}, 0), ("after", CHANGES, CLICKS)):
                send_profiles(stream, changes)
                for click in generate(seed, first):
                    stream.send(clicks, click)
                stream.flush(timeout_s=60)
                rows = [json.loads(record.value or b"") for record in itertools.islice(enriched, CLICKS)]
                if len(rows) < CLICKS:
                    pipeline.wait(0.0)  # raises what went wrong, if anything did
                    raise TimeoutError(f"{len(rows)} of {CLICKS} clicks came back, and no more for {WAIT_S:.0f} s")
                show(title, rows)


def send_profiles(stream: ps.Connection, changes: Mapping[str, Profile | None]) -> None:
    for user, profile in changes.items():
        stream.send(profiles, profile, key=user)
    stream.flush(timeout_s=60)


def show(title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """The number of clicks of each user, with the user's profile."""
    known = Counter((row["user"], row["plan"], row["age"], row["city"]) for row in rows)
    print(f"\n{known.total()} clicks {title} the changes")
    for (user, plan, age, city), count in sorted(known.items(), key=str):
        about = "unknown" if plan is None else f"{plan}, {age}, {city}"
        print(f"  {user}  {about:<16} {'█' * (count // 3)} {count}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"log:{folder}/data")
