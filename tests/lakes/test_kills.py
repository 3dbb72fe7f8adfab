"""Kill -9 of sinks, at every step of a commit and at random moments: each record is in its table once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.lakes.dying_sink import DEAD_EVERY, NEW_FROM, STEPS, TOPIC, value_of
from tests.lakes.readers import FORMATS, rows_of, uri_of
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock

COUNT = 1_000
RUN_S = 90


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    """A broker with the numbered records, on which no test writes."""
    quick = ("--config", "group.min.session.timeout.ms=1000")
    with Penstock(tmp_path_factory.mktemp("lake-broker"), *quick) as running:
        with penstock.connect(f"kafka://{running.bootstrap}") as connection:
            connection.admin().provide(TOPIC, 3, {})
            for number in range(COUNT):
                connection.send(TOPIC, value_of(number), key=str(number).encode())
            connection.flush(60)
        yield running


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(1, each="form")
def test_each_record_is_there_once_after_a_kill_at_every_step(
    server: Penstock, tmp_path: Path, form: str, step: str
) -> None:
    told = _told(server, uri_of(form, tmp_path))
    chance = random.Random(seed_of())
    assert _run({**told, "step": step, "count": 1}, tmp_path) == -signal.SIGKILL
    assert _run({**told, "step": step, "count": chance.randint(2, 5)}, tmp_path) in (-signal.SIGKILL, 0)
    assert _run(told, tmp_path) == 0
    _check(told["uri"])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("key", ["", "id"])
@pytest.mark.sampled(1, each="form")
def test_each_record_is_there_once_after_kills_at_random_of_two_members(
    server: Penstock, tmp_path: Path, form: str, key: str
) -> None:
    told = _told(server, uri_of(form, tmp_path), key)
    chance = random.Random(seed_of())
    for _ in range(times(2, soak=30)):
        members = [_start(told, tmp_path) for _ in range(2)]
        for member in members:
            assert member.stdout is not None
            member.stdout.readline()
        for member in members:
            try:
                member.wait(chance.uniform(0.05, 1.5))
            except subprocess.TimeoutExpired:
                member.kill()
        for member in members:
            assert member.wait(RUN_S) in (-signal.SIGKILL, 0)
    assert _run(told, tmp_path) == 0
    _check(told["uri"])


def _told(server: Penstock, uri: str, key: str = "") -> dict[str, Any]:
    return {"stream": f"kafka://{server.bootstrap}", "uri": uri, "key": key}


def _check(uri: str) -> None:
    numbers = range(COUNT)
    wanted = Counter(each for each in numbers if each % DEAD_EVERY)
    rows = rows_of(uri)
    assert Counter(row["id"] for row in rows) == wanted
    assert all(row["new"] == (2 * row["id"] if row["id"] >= NEW_FROM else None) for row in rows)
    dead = Counter(int(row["value"].split()[1]) for row in rows_of(f"{uri}_dead"))
    assert dead == Counter(each for each in numbers if each % DEAD_EVERY == 0)


def _run(told: dict[str, Any], folder: Path) -> int:
    process = _start(told, folder)
    try:
        return process.wait(RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        pytest.fail(f"the sink did not end within {RUN_S} s:\n{(folder / 'output.txt').read_text()[-3_000:]}")


def _start(told: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.lakes.dying_sink", json.dumps(told)]
    with open(folder / "output.txt", "ab") as output:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
