"""A process that handles a queue is killed between handling and settling: nothing is lost."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from penstock.model import NewRecord
from tests.consuming.queue_worker import start
from tests.seeds import seed_of
from tests.testing.sqlite_queue import SqliteQueue

COUNT = 12


@pytest.mark.parametrize("after", [False, True], ids=["before settling", "after settling"])
def test_what_a_killed_process_had_not_settled_is_handled_by_the_next(tmp_path: Path, after: bool) -> None:
    chance = random.Random(seed_of())
    queue = SqliteQueue(tmp_path)
    queue.send([NewRecord("jobs", b"%d" % number) for number in range(COUNT)])
    nth = chance.randint(1, COUNT)
    killed = start(tmp_path, nth, after)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL, f"it was to die at settle {nth}"
    before = Counter((tmp_path / "effects").read_bytes().split())
    last = start(tmp_path, 0, after)
    last.join(90)
    assert last.exitcode == 0
    effects = Counter((tmp_path / "effects").read_bytes().split())
    assert set(effects) == {b"%d" % number for number in range(COUNT)}, "none is lost"
    settled = nth if after else nth - 1
    repeated = sum(effects.values()) - COUNT
    assert repeated >= sum(before.values()) - settled, "what was handled and not settled is handled again"
