"""With commit_interval_s=0, a killed consumer repeats at most as many records as it has workers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from tests.consuming.eventually import wait_until
from tests.crash.saving_each import TOPIC, Run, numbers
from tests.sampling import times
from tests.seeds import seed_of

KILLS: Final = 2
SOAK_KILLS: Final = 10
BATCH: Final = 7
WAYS: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "one worker": ("plain", {}, 1),
    "threads by key": ("plain", {"order": "key", "workers": 4}, 4),
    "threads without order": ("plain", {"order": "none", "workers": 4}, 4),
    "async": ("async", {"order": "key", "workers": 4}, 4),
    "processes": ("plain", {"order": "key", "workers": 2, "processes": True}, 2),
    "lists": ("list", {"batch": BATCH}, BATCH),
    "shared": ("plain", {"order": "none", "workers": 2, "shared": True, "visibility_s": 2.0}, 2),
    "pull": ("pull", {}, 1),
}
"""Kind of handler, options, and how many records one kill may repeat."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_kill_repeats_at_most_what_the_workers_had_in_hand(way: str, tmp_path: Path) -> None:
    kind, options, most = WAYS[way]
    kill_and_count(Run(tmp_path, kind, options), most)


def test_with_checkpoints_in_files_a_kill_repeats_one_record(tmp_path: Path) -> None:
    kill_and_count(Run(tmp_path, "plain", {"checkpoints": f"file:{tmp_path / 'checkpoints'}"}), 1)


def test_with_checkpoints_in_the_log_itself_a_kill_repeats_one_record(tmp_path: Path) -> None:
    url = f"log:{tmp_path / 'data'}"
    with penstock.connect(url, exit_when_idle_s=60) as stream:
        stream.create_topic(TOPIC, partitions=2)
        stream.open_topic(TOPIC).append(numbers(200))
        stream.flush()
        kill_and_count(Run(tmp_path, "plain", {"checkpoints": "kafka:"}, 200, url), 1, kills=1)


def kill_and_count(run: Run, most: int, kills: int | None = None) -> None:
    """Kill it a few times on its way to the end: no kill repeats more than `most` records, and none is lost."""
    kills = times(KILLS, SOAK_KILLS) if kills is None else kills
    chance = random.Random(seed_of())
    for _ in range(kills):
        _live_until(run, min(run.records, len(set(run.handled())) + chance.randrange(30, 200)))
    _live_until(run, run.records)
    repeated = sum((Counter(run.handled()) - Counter(range(run.records))).values())
    assert repeated <= kills * most, f"{repeated} records were repeated by {kills} kills"


def _live_until(run: Run, count: int) -> None:
    process = run.start()
    try:
        wait_until(lambda: len(set(run.handled())) >= count, 60)
    finally:
        process.kill()
        process.join()
