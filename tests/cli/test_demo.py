"""`penstock demo`: it kills, counts, reports, can fail, and leaves nothing behind. On Spark it is run by hand: it takes
a minute of Java's time, and `tests/spark` has its pipeline in all its parts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.demo.live import Live
from penstock.demo.process_group import parts_for
from penstock.demo.run import LiveShow, Show, show_for
from penstock.demo.settings import DemoSettings
from penstock.errors import JavaMissingError
from penstock.model.processes import end_session
from tests.cli.running import COMMAND

TIMEOUT_S = 240.0
SHORT = ("--seconds", "4", "--rate", "300", "--no-spark", "--no-console")
in_one_worker = pytest.mark.xdist_group("demo")
"""Those that look at the same runs stay together, or each worker would run them."""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*COMMAND, "demo", *SHORT, "--report", str(folder / "report"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    said = ""
    while words not in said:
        line = process.stdout.readline()
        assert line, f"it ended before {words!r}: {said}"
        said += line
    return said


def processes_of(said: str) -> set[int]:
    """Those that it told of."""
    named = re.findall(r"process(?:es)? (\d+)(?: and (\d+))?", said)
    return {int(pid) for pids in named for pid in pids if pid}


def is_running(pid: int, words: bytes = b"") -> bool:
    """Whether it runs, and is what these words of its command say: its number may be somebody else's by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(command) and words in command  # of one that has ended, nothing is left but its exit code


def alive(said: str) -> list[int]:
    """Those that it told of and that still run."""
    return [pid for pid in processes_of(said) if is_running(pid, b"penstock")]


class Runs(NamedTuple):
    """Demos that run side by side: most of the time they wait for a group to notice who is dead."""

    plain: Path
    """The folder of the one that comes to its end."""
    said: str
    faulty: Path
    faulty_process: subprocess.Popen[str]
    staying: Path
    staying_process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    plain, faulty, staying = (tmp_path_factory.mktemp(name) for name in ("plain", "faulty", "staying"))
    with ExitStack() as stack:
        processes = [
            start(plain, "--since", str(time.time() - 100)),
            start(faulty, "--fault", "transaction", "--keep"),
            start(staying, "--stay", "--seconds", "1"),
        ]
        for process in processes:
            stack.callback(process.wait, TIMEOUT_S)
            stack.callback(process.kill)
        out, err = processes[0].communicate(timeout=TIMEOUT_S)
        assert (processes[0].returncode, err) == (0, ""), out
        yield Runs(plain, out, faulty, processes[1], staying, processes[2])


@in_one_worker
def test_it_kills_a_consumer_and_the_broker_and_loses_nothing(runs: Runs) -> None:
    out = runs.said
    assert re.search(r"consumer 2 \(process \d+\) was killed with SIGKILL", out)
    assert re.search(r"partitions were taken over by consumer 1 after [\d.]+ s", out)
    assert re.search(r"The broker \(process \d+\) was killed with SIGKILL", out)
    assert re.search(r"It is back \(process \d+\)", out)
    counts = dict(re.findall(r"^(events sent|lost|dead letters) +([\d,]+) +ok", out, re.MULTILINE))
    assert counts["events sent"] == "1,200"
    assert counts["lost"] == "0"
    assert int(counts["dead letters"]) > 0
    assert "WRONG" not in out


@in_one_worker
def test_it_tells_how_long_the_first_result_took(runs: Runs) -> None:
    told = re.search(r"time to the first result +([\d.]+) s +from the start of the demo; ([\d.]+) s from", runs.said)
    assert told is not None
    assert float(told.group(2)) > 100 > float(told.group(1))


@in_one_worker
def test_it_leaves_no_process_and_no_folder(runs: Runs) -> None:
    assert len(processes_of(runs.said)) >= 4
    assert not alive(runs.said)
    assert list((runs.plain / "tmp").iterdir()) == []


@in_one_worker
def test_the_report_stands_alone_and_tells_the_same(runs: Runs) -> None:
    page = (runs.plain / "report" / "report.html").read_text("utf-8")
    assert "nothing lost, every total right" in page
    assert "1,200" in page
    assert page.count("<svg") == 4
    assert "prefers-color-scheme: dark" in page
    for outside in ("<script", "src=", "href=", "@import", "url("):
        assert outside not in page


@in_one_worker
def test_it_fails_when_a_record_is_lost(runs: Runs) -> None:
    out, err = runs.faulty_process.communicate(timeout=TIMEOUT_S)
    assert runs.faulty_process.returncode == 1
    assert re.search(r"^lost +1 +WRONG", out, re.MULTILINE)
    assert err.startswith("penstock: the demo failed with seed 1: lost: 1")
    assert "not as promised" in (runs.faulty / "report" / "report.html").read_text("utf-8")
    assert not alive(out)
    (kept,) = (runs.faulty / "tmp").iterdir()
    assert str(kept) in out
    assert (kept / "data" / "transactions-0").is_dir()


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "Two consumers"), (signal.SIGINT, "was killed with SIGKILL")],
)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    process = start(tmp_path)
    said = read_until(process, moment)
    process.send_signal(number)
    process.send_signal(number)  # who is impatient
    rest, complaints = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, complaints) == (128 + number, "")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not alive(said + rest)


@in_one_worker
def test_with_stay_it_goes_on_until_it_is_interrupted(runs: Runs) -> None:
    process = runs.staying_process
    said = read_until(process, "It continues")
    assert "Nothing was lost" in said
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, complaints) == (130, "")
    assert list((runs.staying / "tmp").iterdir()) == []
    assert not alive(said + rest)


def test_its_processes_do_not_outlive_a_demo_that_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path)
    said = read_until(process, "Two consumers")
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    assert len(processes_of(said)) == 3
    wait_until_gone(said)


def wait_until_gone(said: str, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while left := alive(said):
        assert time.monotonic() < until_s, f"processes {left} still run"
        time.sleep(0.05)


def test_a_process_takes_along_what_has_left_its_group() -> None:
    program = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', "
    program += "'import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)'])"
    program += "; import time; time.sleep(600)"
    leader = subprocess.Popen([COMMAND[0], "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    grandchild = int(leader.stdout.readline())
    end_session(leader.pid)
    leader.wait(30)
    assert not is_running(grandchild)


def test_without_java_the_rest_takes_part_and_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")

    def find_none() -> None:
        raise JavaMissingError("Spark needs Java 17 or newer; found none. Install one with `install java`.")

    monkeypatch.setattr("penstock.demo.process_group.find_java", find_none)
    parts = parts_for(DemoSettings(report=tmp_path, with_console=False))
    assert not parts.spark
    assert any("Install one with" in sentence for sentence in parts.advice)


@pytest.mark.parametrize(
    ("package", "part", "extra"),
    [("pyspark", "spark", "spark"), ("nicegui", "console", "console")],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, part: str, extra: str
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    parts = parts_for(DemoSettings(report=tmp_path))
    assert not getattr(parts, part)
    assert any(f"{package} is not installed; run: pip install 'penstock[{extra}]'" in each for each in parts.advice)


def test_what_is_not_wanted_is_not_missed(tmp_path: Path) -> None:
    parts = parts_for(DemoSettings(report=tmp_path, with_spark=False, with_console=False))
    assert (parts.spark, parts.console) == (False, False)
    assert not any("Spark" in each or "console" in each for each in parts.advice)


def test_without_a_terminal_plain_lines_are_shown(tmp_path: Path) -> None:
    settings, live = DemoSettings(report=tmp_path), Live(time.monotonic())
    assert type(show_for(settings, live)) is Show


def of_query(read: int, written: int, batch: int) -> dict[str, Any]:
    """What a driver tells of a query."""
    counts = {"read": read, "written": written, "batch": batch, "lag": 0}
    return {"kind": "query", "query": "page-use", "state": "running", "error": None, **counts}


def spark_words(live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a plain line says of the query."""
    Show(DemoSettings(report=tmp_path), live)._refresh()
    return capsys.readouterr().out.partition("page-use on Spark: ")[2].strip()


def test_what_spark_has_read_and_written_stays_so_when_its_driver_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = Live(time.monotonic())
    live.hear_driver(of_query(read=0, written=0, batch=-1))
    assert spark_words(live, tmp_path, capsys) == "its first batch is running"
    live.hear_driver(of_query(read=4_647, written=12, batch=0))
    assert spark_words(live, tmp_path, capsys) == "4,647 read, 12 written"
    live.forget_driver()
    assert spark_words(live, tmp_path, capsys) == "4,647 read, 12 written"
    assert live.queries["page-use"].batch == -1, "its next driver has done nothing yet"
    live.hear_driver(of_query(read=0, written=0, batch=-1))
    assert spark_words(live, tmp_path, capsys) == "4,647 read, 12 written"
    live.hear_driver({**of_query(read=0, written=0, batch=-1), "state": "waiting", "error": "OSError: no"})
    assert spark_words(live, tmp_path, capsys) == "starts again after OSError: no"
    live.hear_driver(of_query(read=5_000, written=3, batch=7))
    assert spark_words(live, tmp_path, capsys) == "5,000 read, 15 written"


def test_on_a_terminal_a_table_says_how_things_stand(tmp_path: Path) -> None:
    from rich.console import Console

    live = Live(time.monotonic())
    live.hear_generator({"kind": "sent", "sent": 1_234, "to_judge": 600, "acknowledged": 1_200})
    live.listener_of("consumer 1")({"kind": "assigned", "topic": "transactions", "partitions": [0, 2]})
    live.hear_driver(of_query(read=77, written=5, batch=0))
    live.saw(verdicts=590, letters=3, lag=10, page_lag=4)
    with (console := Console(width=100)).capture() as capture:
        console.print(LiveShow(DemoSettings(report=tmp_path), live).standing())
    shown = capture.get()
    for words in ("1,234", "590", "transactions 0 2", "Spark: page-use", "77", "10"):
        assert words in shown


def test_partitions_are_taken_over_when_the_others_have_them_all() -> None:
    live = Live(time.monotonic())
    first, second = live.listener_of("consumer 1"), live.listener_of("consumer 2")
    first({"kind": "assigned", "topic": "transactions", "partitions": [0, 1]})
    second({"kind": "assigned", "topic": "transactions", "partitions": [2, 3]})
    assert live.covers({"transactions": 4})
    live.forget_consumer("consumer 2")
    assert not live.covers({"transactions": 4})
    first({"kind": "assigned", "topic": "transactions", "partitions": [2, 3]})
    assert live.covers({"transactions": 4})
    first({"kind": "revoked", "topic": "transactions", "partitions": [3]})
    assert not live.covers({"transactions": 4})
