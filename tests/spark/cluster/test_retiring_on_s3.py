"""Retiring a version whose checkpoints are in S3, by command, while its driver stands still and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pyarrow.fs import FileSelector, FileSystem

from penstock import Connection
from penstock.spark.versions.register import Register
from tests.cli.running import COMMAND
from tests.servers import ServerProcess
from tests.spark.cluster.stores import S3Store

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 240.0
PROGRAM: Final = """
import sys
from penstock.spark.pipeline import Pipeline

pipe = Pipeline("usage", sys.argv[1], engine="python")
pipe.write(pipe.read("orders").select("key", "value"), "copies")
"""


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    with S3Store(tmp_path, HOST) as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        yield store


def wait_for(what: str, is_so: Callable[[], object], process: ServerProcess, timeout_s: float = TIMEOUT_S) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert process.is_alive(), process.last_words()
        assert time.monotonic() < until, f"{what}: {process.last_words()}"
        time.sleep(0.1)


def _files(files: FileSystem, url: str) -> list[str]:
    selector = FileSelector(url.removeprefix("s3a://"), recursive=True, allow_not_found=True)
    return [each.path for each in files.get_file_info(selector)]


def _copies(connection: Connection) -> list[str]:
    if "copies" not in connection.topics():
        return []
    return [(record.value or b"").decode() for record in connection.read("copies")]


@pytest.mark.sampled(2, among="pipelines on a standalone cluster")
def test_checkpoints_in_s3_are_kept_until_the_driver_of_the_version_has_ended(
    s3: S3Store, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("orders", 1)
    connection.send("orders", "a").result(30)
    checkpoints = s3.fresh_folder()
    options = ["--master", "local[1]", "--conf", "spark.driver.memory=1g"]
    for name, value in s3.conf().items():
        options += ["--conf", f"{name}={value}"]
    program = tmp_path / "usage.py"
    program.write_text(PROGRAM)
    words = [*COMMAND, "run", str(program), "--checkpoints", checkpoints, *options, "--", log_url]
    driver = ServerProcess(words, tmp_path / "driver.txt")
    retiring: ServerProcess | None = None
    try:
        wait_for("the first batch", lambda: _copies(connection) == ["a"], driver)
        connection.create_topic("copies.v2", 1)
        register = Register(connection)
        register.begin("usage", "v2", {"copies": "record"}, checkpoints)
        register.caught_up("usage", "v2")
        register.switch("usage", "v2", expected="v1")

        os.kill(driver.pid, signal.SIGSTOP)
        command = [*COMMAND, "pipelines", "retire", "usage", "v1", "--url", log_url, *options]
        retiring = ServerProcess(command, tmp_path / "retiring.txt")
        waiting = f"Waiting until it has ended: process {driver.pid} on host"
        wait_for("the driver to be found", lambda: waiting in retiring.output(), retiring)
        assert register.find("usage", "v1").state == "retiring"
        connection.send("orders", "b").result(30)
        assert [each for each in _files(s3.files(), checkpoints) if "/usage/copies/spark/commits" in each]
        os.kill(driver.pid, signal.SIGCONT)

        assert retiring.popen.wait(TIMEOUT_S) == 0, retiring.last_words()
        assert driver.popen.wait(TIMEOUT_S) == 0, driver.last_words()
        assert f"Stopped version v1, which ran in process {driver.pid} on host" in retiring.output()
        assert register.find("usage", "v1").state == "retired"
        assert not _files(s3.files(), f"{checkpoints}/usage")
        assert _copies(connection) in (["a"], ["a", "b"]), "a batch that had begun is finished, once"
    finally:
        for process in (driver, retiring):
            if process is not None:
                process.kill()
