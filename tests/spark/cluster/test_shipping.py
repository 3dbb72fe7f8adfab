"""Executors that have never heard of Penstock run a pipeline all the same, or it is said what they lack."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock import Connection
from tests.cli.running import COMMAND, Done
from tests.servers import ServerProcess, free_ports
from tests.spark.cluster.standalone import HOST, Standalone

TIMEOUT_S: Final = 240.0

PROGRAM: Final = """
import sys
from penstock.spark.pipeline import Pipeline
from rates import doubled

pipe = Pipeline("doubling", sys.argv[1], engine="python")
numbers = pipe.read("numbers").select("key", "value")
pipe.write(numbers.mapInArrow(doubled, "key binary, value binary"), "doubled")
"""

RATES: Final = """
import pyarrow

def doubled(batches):
    import penstock
    for batch in batches:
        values = [b"%d %s" % (2 * int(each), penstock.__file__.encode()) for each in batch.column("value").to_pylist()]
        yield pyarrow.RecordBatch.from_arrays(
            [batch.column("key"), pyarrow.array(values, pyarrow.binary())], ["key", "value"]
        )
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "rates.py").write_text(RATES)
    return tmp_path / "program.py"


def _environment(folder: Path, *, packages: bool) -> Path:
    """An archive with a Python in it that has, of the packages of this environment, all but Penstock, or none."""
    more = f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{sysconfig.get_path("purelib")}" ' if packages else ""
    script = f'#!/bin/sh\n{more}exec "{Path(sys.executable).resolve()}" -s "$@"\n'.encode()
    path = folder / "environment.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        about = tarfile.TarInfo("bin/python3")
        about.size, about.mode = len(script), 0o755
        archive.addfile(about, io.BytesIO(script))
    return path


def _run(cluster: Standalone, program: Path, archive: Path, url: str, *more: str) -> Done:
    conf = [*more, f"spark.driver.host={HOST}", f"spark.driver.bindAddress={HOST}", "spark.executor.memory=512m"]
    options = ["--master", cluster.url, "--archive", str(archive), "--once"]
    for setting in [*conf, "spark.driver.memory=1g"]:
        options += ["--conf", setting]
    process = ServerProcess([*COMMAND, "run", str(program), *options, "--", url], program.parent / "told.txt")
    try:
        code = process.popen.wait(TIMEOUT_S)
    finally:
        process.kill()
    return Done(code, "", process.output())


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
def test_executors_are_sent_penstock_and_the_modules_of_the_program(
    cluster: Standalone, program: Path, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("numbers", 1)
    for number in range(20):
        connection.send("numbers", str(number))
    connection.flush(30)
    done = _run(cluster, program, _environment(tmp_path, packages=True), log_url)
    assert done.code == 0, done.err[-5000:]
    told = [(record.value or b"").decode().split() for record in connection.read("doubled")]
    assert sorted(int(number) for number, _ in told) == [2 * number for number in range(20)]
    ours = str(Path(str(penstock.__file__)).parent)
    for place in {place for _, place in told}:
        assert "penstock-program.zip" in place
        assert not place.startswith(ours)


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
def test_executors_that_lack_packages_are_told_before_anything_runs(
    cluster: Standalone, program: Path, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("numbers", 1)
    done = _run(cluster, program, _environment(tmp_path, packages=False), log_url)
    assert done.code == 1, done.err[-5000:]
    (complaint,) = [line for line in done.err.splitlines() if line.startswith("penstock: ")]
    assert "executors cannot run the pipeline" in complaint
    for package in ("confluent-kafka", "msgspec", "pyarrow"):
        assert package in complaint
    assert "--archive environment.tar.gz" in complaint
    assert "doubled" not in connection.topics()


@pytest.mark.timeout(300)
def test_a_master_without_an_executor_to_give_is_told_with_what_was_asked_for(
    program: Path, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("numbers", 1)
    environment = _environment(tmp_path, packages=True)
    with Standalone(tmp_path / "empty", workers=0) as empty:
        done = _run(empty, program, environment, log_url, "spark.penstock.executorWait=2s")
    assert done.code == 1, done.err[-5000:]
    (complaint,) = [line for line in done.err.splitlines() if line.startswith("penstock: ")]
    assert f"{empty.url} has given this program no executor for 2 s" in complaint
    assert "512m of memory (spark.executor.memory)" in complaint
    assert "is a worker alive that has this memory" in complaint
    assert "doubled" not in connection.topics()


def test_a_session_on_a_port_that_nobody_serves_is_refused_before_java_starts(tmp_path: Path) -> None:
    """`penstock run` looks itself: a program of its own, or spark-defaults.conf, may name a master, too."""
    (port,) = free_ports(1)
    program = tmp_path / "own.py"
    program.write_text(f"from penstock.spark import session\nsession(master='spark://{HOST}:{port}')\n")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 1
    assert f"no Spark master answers at spark://{HOST}:{port}" in done.stderr
