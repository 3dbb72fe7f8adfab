"""Apps on an embedded log, in a group of the broker's, killed at random while records come in."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import penstock
from penstock.streams import Connection
from tests.crash.dying_app import COPY, NOTE, Members
from tests.sampling import times
from tests.seeds import seed_of

KILLS: Final = 3
SOAK_KILLS: Final = 60
BATCH: Final = 400


def test_apps_killed_at_random_lose_nothing_and_copy_each_record_once(tmp_path: Path) -> None:
    """Two members at a time; one of them is killed, and another one takes its place."""
    chance = random.Random(seed_of())
    app = Members(f"log:{tmp_path / 'data'}", tmp_path)
    members: list[BaseProcess] = []
    with penstock.connect(app.url, exit_when_idle_s=60) as stream, contextlib.ExitStack() as stack:
        for topic in (app.source, app.copies):
            stream.create_topic(topic, partitions=3)
        stack.callback(kill, members)
        members.extend(app.start() for _ in range(2))
        sent = 0
        for _ in range(times(KILLS, SOAK_KILLS)):
            for number in range(sent, sent + BATCH):
                stream.send(app.source, str(number), str(number % 20))
            sent += BATCH
            threading.Event().wait(chance.uniform(0.1, 1.5))
            victim = members.pop(chance.randrange(len(members)))
            victim.kill()
            victim.join()
            members.append(app.start())
        stream.flush()
        copies = seen_when_all_are_there(app, COPY, stream, sent)
        noted = seen_when_all_are_there(app, NOTE, stream, sent)
    expected = Counter(str(number).encode() for number in range(sent))
    assert copies == expected, f"lost {expected - copies}, repeated {copies - expected}"
    assert set(noted) == set(expected), f"lost {set(expected) - set(noted)}"


def kill(members: list[BaseProcess]) -> None:
    for member in members:
        member.kill()
        member.join()


def seen_when_all_are_there(app: Members, way: str, stream: Connection, count: int) -> Counter[bytes]:
    seen: Counter[bytes] = Counter()
    for _ in range(300):
        seen = app.seen(way, stream)
        if len(seen) >= count:
            break
        threading.Event().wait(0.2)
    return seen
