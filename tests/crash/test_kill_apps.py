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
from tests.crash import dying_app
from tests.sampling import times
from tests.seeds import seed_of

KILLS: Final = 3
SOAK_KILLS: Final = 60
BATCH: Final = 400


def test_apps_killed_at_random_lose_nothing_and_copy_each_record_once(tmp_path: Path) -> None:
    """Two members at a time; one of them is killed, and another one takes its place."""
    chance = random.Random(seed_of())
    url, seen = f"log:{tmp_path / 'data'}", tmp_path / "seen.txt"
    members: list[BaseProcess] = []
    with penstock.connect(url, exit_when_idle_s=60) as stream, contextlib.ExitStack() as stack:
        for topic in ("numbers", "copies"):
            stream.create_topic(topic, partitions=3)
        stack.callback(kill, members)
        members.extend(dying_app.start(url, seen) for _ in range(2))
        sent = 0
        for _ in range(times(KILLS, SOAK_KILLS)):
            for number in range(sent, sent + BATCH):
                stream.send("numbers", str(number), str(number % 20))
            sent += BATCH
            threading.Event().wait(chance.uniform(0.1, 1.5))
            victim = members.pop(chance.randrange(len(members)))
            victim.kill()
            victim.join()
            members.append(dying_app.start(url, seen))
        stream.flush()
        copies = copies_when_all_are_there(stream, sent)
        noted = notes_when_all_are_there(seen, sent)
    expected = Counter(str(number).encode() for number in range(sent))
    assert copies == expected, f"lost {expected - copies}, repeated {copies - expected}"
    assert set(noted) == set(expected), f"lost {set(expected) - set(noted)}"


def kill(members: list[BaseProcess]) -> None:
    for member in members:
        member.kill()
        member.join()


def copies_when_all_are_there(stream: Connection, count: int) -> Counter[bytes]:
    copies: Counter[bytes] = Counter()
    for _ in range(300):
        copies = Counter(record.value or b"" for record in stream.read("copies"))
        if len(copies) >= count:
            break
        threading.Event().wait(0.2)
    return copies


def notes_when_all_are_there(seen: Path, count: int) -> Counter[bytes]:
    noted: Counter[bytes] = Counter()
    for _ in range(300):
        noted = Counter(seen.read_bytes().split())
        if len(noted) >= count:
            break
        threading.Event().wait(0.2)
    return noted
