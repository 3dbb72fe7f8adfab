"""kill -9 at any moment: what was acknowledged is there, once, in order."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.log.engine import open_log, read_all, reopen
from tests.log.killed_writer import KEYS
from tests.sampling import times
from tests.seeds import seed_of
from tests.tidy.source import ROOT


def write_and_kill(folder: Path, acknowledged: int, after: int, *, mode: str) -> int:
    """Let a process write, kill it once it has acknowledged so many records more, and give the last it acknowledged."""
    command = [sys.executable, "-m", "tests.log.killed_writer", str(folder), str(acknowledged), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged = int(line)
            after -= 1
            if not after:
                process.kill()
        process.wait()
    assert process.returncode == -9, "the writer ended by itself"
    return acknowledged


def test_a_killed_writer_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    acknowledged = 0
    for number in range(times(3, soak=100)):
        acknowledged = write_and_kill(tmp_path / "p", acknowledged, chance.randrange(1, 150), mode="plain")
        log, report = reopen(tmp_path / "p")
        where = f"seed {seed}, round {number}"
        assert not report.damaged, where
        assert log.end_offset >= acknowledged, where
        values = [record.value for record in read_all(log)]
        assert values == [b"%d" % each for each in range(log.end_offset)], where


def test_a_writer_killed_while_it_compacts_keeps_the_last_value_of_every_key(tmp_path: Path) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    acknowledged = 0
    settings = {"cleanup.policy": "compact"}
    for number in range(times(4, soak=50)):
        acknowledged = write_and_kill(tmp_path / "p", acknowledged, chance.randrange(60, 200), mode="compact")
        log, report = reopen(tmp_path / "p", settings)
        where = f"seed {seed}, round {number}"
        assert not report.damaged, where
        records = read_all(log)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), where
        assert all(record.value == b"%d" % record.offset for record in records), where
        last = {int(record.key or b""): record.offset for record in records}
        for key in range(min(KEYS, acknowledged)):
            newest = (acknowledged - 1 - key) // KEYS * KEYS + key
            assert last[key] >= newest, where
    assert len(records) < acknowledged, "nothing was ever compacted"
    assert not list((tmp_path / "p").glob("*.cleaned"))
    assert open_log(tmp_path / "p", settings).clean_offset > 0
