"""What a newcomer meets: the programs of the README, on a terminal, and plain PySpark at the top of a program."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import penstock as ps
from penstock.errors import JavaMissingError
from penstock.java.downloads import cache_folder
from penstock.java.installed import find_java
from tests.cli.running import COMMAND, Command
from tests.docs.blocks import PYTHON, ROOT, page_of
from tests.streams.embedded import stop_broker

TIMEOUT_S: Final = 240.0
KNOWN: Final = r"usage\.spend: |starting Spark|\x1b|WARNING: Using incubator|NOTE: Picked up JDK_JAVA_OPTIONS"
"""What is shown: the state of the query, and what Java prints of the options that Spark and the tests give it."""

UDFS: Final = """
import sys
from pyspark.sql import functions as F
from pyspark.sql.functions import udf
from penstock.spark import Pipeline, Restart


@udf("long")
def twice(value):
    return 2 * int(value)


DOUBLED = twice(F.col("value").cast("string")).alias("doubled")
MARK = sys.argv[2:]
pipe = Pipeline("udfs", sys.argv[1], restart=Restart(attempts=1), guard=not MARK)


@udf("long")
def checked(doubled):
    if MARK:
        print("a word of a worker", file=sys.stderr, flush=True)
        raise ValueError("marked " + MARK[0])
    return doubled


pipe.write(pipe.read("numbers").select(DOUBLED).select(checked("doubled").cast("string").alias("value")), "doubled")
"""


class Terminal:
    """A program whose standard error is a terminal of 150 columns."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        try:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=slave,
                env={**os.environ, "COLUMNS": "150", "PYTHONUNBUFFERED": "1"},
                text=True,
            )
        finally:
            os.close(slave)
        self.shown = ""

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.shown):
            assert time.monotonic() < until, f"{pattern} was not shown:\n{self.shown}"
            if not self._read(1.0):
                raise AssertionError(f"{pattern} was not shown, and it ended:\n{self.shown}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        while self._read(1.0):
            pass
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        """Take what was shown; False when nothing can be shown any more."""
        if select.select([self._master], [], [], timeout_s)[0]:
            try:
                self.shown += os.read(self._master, 65_536).decode("utf-8", errors="replace")
            except OSError:  # Linux says so when the other end is closed
                return False
        return self.process.poll() is None or bool(select.select([self._master], [], [], 0)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty one, on a machine with Java."""
    try:
        find_java()
    except JavaMissingError as missing:
        pytest.skip(str(missing))
    yield tmp_path
    for address in tmp_path.rglob("broker.json"):
        stop_broker(address.parent)


def programs() -> list[str]:
    page = page_of("README.md", (ROOT / "README.md").read_text("utf-8"))
    texts = [block.text for block in page.blocks if block.is_run and block.language in PYTHON]
    return [texts[0], next(text for text in texts if "Pipeline(" in text)]


@pytest.mark.timeout(600)
def test_the_programs_of_the_readme_run_one_after_the_other_in_an_empty_folder(folder: Path) -> None:
    ten_lines, pipeline = programs()
    (folder / "ten.py").write_text(ten_lines)
    (folder / "usage.py").write_text(pipeline)
    done = subprocess.run(
        [sys.executable, "ten.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "stored: orders-0 at offset 0" in done.stdout
    terminal = Terminal([sys.executable, "usage.py"], folder)
    url = f"log:{folder / 'data'}"
    try:
        terminal.wait_for(r"usage\.spend: running .* 3 rows read .* 1 written .* lag 0")
        assert "starting Spark on local[*]" in terminal.shown
        (row,) = Command(url).well("pipelines", "--json").json
        assert (row["pipeline"], row["version"], row["state"], row["lag"]) == ("usage", "v1", "running", 0)
        assert row["last_batch"] >= 0
        assert '"sum(amount)":10.0' in Command(url).well("consume", "spend", "--format", "raw").out
        assert terminal.interrupt() == 0
    finally:
        terminal.close()
    assert "usage.spend: stopped" in terminal.shown
    lines = [line for line in re.split(r"[\r\n]+|\x1b\[J", terminal.shown) if line.strip()]
    strange = [line for line in lines if not re.match(KNOWN, line)]
    assert not strange, "nothing is shown that a newcomer would wonder about"


@pytest.mark.sampled(1, among="programs with a JVM of their own")
@pytest.mark.timeout(600)
def test_functions_at_the_top_of_a_program_find_a_session_and_its_errors_are_a_few_lines(folder: Path) -> None:
    url = f"log:{folder / 'data'}"
    (folder / "udfs.py").write_text(UDFS)
    with ps.connect(url) as stream:
        stream.send("numbers", "21").result(timeout=30)
    run = [*COMMAND, "run", "udfs.py", "--once", "--master", "local[2]", "--", url]
    good = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert good.returncode == 0, good.stderr
    with ps.connect(url) as stream:
        assert [record.value for record in stream.read("doubled")] == [b"42"]
        stream.send("numbers", "4").result(timeout=30)
    assert "pipeline udfs has started: doubled" in good.stderr
    assert "udfs.doubled: finished" in good.stderr
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    bad = subprocess.run([*run, mark], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert bad.returncode == 1
    told = [line for line in bad.stderr.splitlines() if f"ValueError: marked {mark}, at udfs.py:2" in line]
    assert len(told) == 3, "the first attempt, the state in the end, and the error that ended it"
    assert "offset 1" in told[0]
    assert "a word of a worker" in bad.stderr, "what functions of the program print is shown"
    for noise in ("BrokenPipe", "\tat ", "Traceback", "Exception in task", "terminated with error"):
        assert noise not in bad.stderr
    assert len(bad.stderr.splitlines()) < 15, bad.stderr
    assert _log_with(mark).count("\tat org.apache.spark.") > 10, "Spark's log has the stacks"


def _log_with(mark: str) -> str:
    for file in sorted((cache_folder() / "logs").glob("spark-*.log"), key=lambda each: each.stat().st_mtime):
        with contextlib.suppress(FileNotFoundError):
            if mark in (text := file.read_text("utf-8", errors="replace")):
                return text
    raise AssertionError(f"no log of Spark has {mark}")
