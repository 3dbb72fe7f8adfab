"""`penstock prove outage`: it counts, and it cleans up after itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from penstock.prove.broker_process import interruptions_deferred
from penstock.prove.outage import Plan
from penstock.prove.tally import Tally
from tests.cli.running import COMMAND

TIMEOUT_S = 120.0


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "prove", "outage", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
    )


def test_an_outage_kills_recovers_counts_and_leaves_nothing(tmp_path: Path) -> None:
    out, err = (process := start(tmp_path, "--records", "20000", "--kills", "1", "--seed", "3")).communicate(
        timeout=TIMEOUT_S
    )
    assert process.returncode == 0, err
    # A busy machine takes longer to come back than clients wait before they say so.
    told = re.sub(r"^(nothing was acknowledged for .*|records are acknowledged again)\n", "", err, flags=re.MULTILINE)
    assert told == ""
    assert "kill -9" in out
    assert "It is back" in out
    counts = dict(
        re.findall(r"^(sent|acknowledged|lost|duplicates|out of order for their key) +([\d,]+)", out, re.MULTILINE)
    )
    assert counts == {
        "sent": "20,000",
        "acknowledged": "20,000",
        "lost": "0",
        "duplicates": "0",
        "out of order for their key": "0",
    }
    assert list(tmp_path.iterdir()) == []
    assert not _alive(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["producers send", "kill -9", "It is back"])
def test_an_interrupted_outage_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    process = start(tmp_path, "--records", "200000", "--kills", "10000")
    assert process.stdout is not None
    said = ""
    while moment not in said:
        line = process.stdout.readline()
        assert line, f"it ended before {moment!r}: {said}"
        said += line
    process.send_signal(number)
    rest, complaints = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, complaints) == (128 + number, "")
    assert list(tmp_path.iterdir()) == []
    assert not _alive(said + rest)


def test_the_folder_can_be_kept(tmp_path: Path) -> None:
    out, _ = (process := start(tmp_path, "--records", "100", "--kills", "0", "--keep")).communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    (folder,) = tmp_path.iterdir()
    assert str(folder) in out
    assert (folder / "data" / "outage-0").is_dir()


def test_the_seed_decides_when_it_is_killed() -> None:
    assert Plan(seed=5).kill_points() == Plan(seed=5).kill_points()
    assert Plan(seed=5).kill_points() != Plan(seed=6).kill_points()
    points = Plan(records=1000, kills=9, seed=7).kill_points()
    assert points == sorted(points)
    assert all(100 <= point <= 900 for point in points)


def test_what_is_lost_doubled_or_out_of_order_is_noticed() -> None:
    tally = Tally(producers=1, keys=1)
    values = [tally.next_record(0)[2] for _ in range(5)]
    for number in range(4):
        tally.acknowledge(0, number)
    for offset, number in enumerate([0, 2, 1, 2]):
        tally.see(0, offset, values[number])
    tally.see(0, 0, values[0])
    verdict = tally.verdict()
    assert (verdict.sent, verdict.acknowledged, verdict.read) == (5, 4, 4)
    assert (verdict.lost, verdict.duplicates, verdict.out_of_order) == (1, 1, 1)
    assert not verdict.holds


def test_a_clean_run_holds() -> None:
    tally = Tally(producers=2, keys=3)
    for producer in range(2):
        for offset in range(10):
            number, key, value = tally.next_record(producer)
            assert key == b"%d-%d" % (producer, number % 3)
            assert len(value) == 100
            tally.acknowledge(producer, number)
            tally.see(producer, offset, value)
    assert tally.verdict().holds


def _alive(said: str) -> list[int]:
    """The brokers that it started and that still run."""
    alive = []
    for pid in {int(found) for found in re.findall(r"process (\d+)", said)}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        if b"penstock" in Path(f"/proc/{pid}/cmdline").read_bytes():
            alive.append(pid)
    return alive


def test_an_interruption_waits_until_a_process_has_its_owner() -> None:
    reached: list[str] = []

    def interrupt_inside() -> None:
        with interruptions_deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupt_inside()
    assert reached == ["the end of the block"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
