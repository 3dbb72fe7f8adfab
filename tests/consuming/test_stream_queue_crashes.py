"""Members of a sharing group are killed at random and at every step: nothing is lost, and little is repeated."""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.model import CheckpointKey
from tests.consuming.eventually import wait_until
from tests.consuming.stream_queue_worker import GROUP, TOPIC, allow, is_all_finished, start, work
from tests.prove.deaths import Death
from tests.seeds import seed_of

VISIBILITY_S = 0.5
AT_WORK_BYTES = 1000
"""So much is still to be done when one is killed."""


class Workers:
    """Worker processes on one database, each under a name of its own."""

    def __init__(self, folder: Path, partitions: int, count: int) -> None:
        self.database = folder / "checkpoints.db"
        self.effects = folder / "effects"
        self.partitions = partitions
        self.count = count
        self.running: dict[str, BaseProcess] = {}
        self._started = 0

    def start(self, death: Death | None = None) -> BaseProcess:
        name = f"w{self._started}"
        self._started += 1
        process = start(self.database, self.effects, name, VISIBILITY_S, self.partitions, self.count, death)
        self.running[name] = process
        return process

    def at_work(self) -> list[str]:
        """The running ones that have done something."""
        return sorted({name for name, _, _ in self.lines() if name in self.running})

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.join(20)
        assert process.exitcode == -signal.SIGKILL

    def progress_bytes(self) -> int:
        return self.effects.stat().st_size if self.effects.exists() else 0

    def lines(self) -> list[tuple[str, int, str]]:
        if not self.effects.exists():
            return []
        split = [line.split() for line in self.effects.read_text().splitlines()]
        return [(name, int(attempt), value) for name, attempt, value in split]

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.join()


def check_effects(workers: Workers) -> int:
    """Every record had its effect, and none had it twice in one attempt. Gives how many effects were repeated."""
    counts = Counter(value for _, _, value in workers.lines())
    expected = {f"{partition}:{n}" for partition in range(workers.partitions) for n in range(workers.count)}
    assert set(counts) == expected, f"lost: {sorted(expected - set(counts))[:20]}"
    attempts = Counter((value, attempt) for _, attempt, value in workers.lines())
    assert set(attempts.values()) == {1}, f"handed out twice at once: {attempts.most_common(5)}"
    return sum(counts.values()) - len(counts)


def test_nothing_is_lost_when_workers_are_killed_at_random(tmp_path: Path) -> None:
    chance = random.Random(seed_of())
    workers = Workers(tmp_path, partitions=2, count=1500)
    kills = 5
    goal_bytes = 0
    allow(workers.effects, goal_bytes)
    try:
        for _ in range(4):
            workers.start()
        for number in range(kills):
            goal_bytes += chance.randrange(500, 5000)
            allow(workers.effects, goal_bytes + AT_WORK_BYTES)
            wait_until(lambda goal_bytes=goal_bytes: workers.progress_bytes() >= goal_bytes)  # type: ignore[misc]
            wait_until(workers.at_work)
            workers.kill(chance.choice(workers.at_work()))
            workers.start()
            print(f"kill {number}: {len(workers.lines())} effects so far")
        allow(workers.effects, sys.maxsize)
        wait_until(lambda: all(process.exitcode == 0 for process in workers.running.values()), timeout_s=60)
        repeated = check_effects(workers)
        print(f"{kills} kills, 3000 records, {repeated} repeated")
        assert len({name for name, _, _ in workers.lines()}) > kills, "others have taken over"
    finally:
        workers.end()
    store = SqliteCheckpoints(workers.database)
    for partition in range(2):
        checkpoint = store.load(CheckpointKey(GROUP, TOPIC, partition))
        assert checkpoint is not None
        assert (checkpoint.start, checkpoint.finished, checkpoint.claims) == (1500, (), ())
    store.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("step", "nth"), [("claim", 1), ("save", 1), ("save", 2), ("save", 8)])
def test_nothing_is_lost_when_a_worker_dies_at_a_step(tmp_path: Path, step: str, nth: int, after: bool) -> None:
    workers = Workers(tmp_path, partitions=1, count=12)
    try:
        dying = workers.start(Death(step, nth, after))
        dying.join(20)
        assert dying.exitcode == -signal.SIGKILL, f"it did not come to {step} number {nth}"
        store = SqliteCheckpoints(workers.database)
        work(store, str(workers.effects), "heir", VISIBILITY_S, 1, 12)
        assert is_all_finished(store, 1, 12)
        store.close()
        assert check_effects(workers) <= 1
    finally:
        workers.end()
