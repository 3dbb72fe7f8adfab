"""Retiring a version whose checkpoints are on a store without locks: nothing is deleted under a run.

A `file://` URL is reached through Hadoop, like s3a:// and hdfs://, so these tests need no server. S3 is in
tests/spark/cluster/test_retiring_on_s3.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import Connection
from penstock.errors import PipelineError, PipelineRunningError
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.restart import Restart
from penstock.spark.run.run_records import RunRecord, RunRecords
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.versions import retirement
from penstock.spark.versions.register import Register, Version
from penstock.spark.versions.retirement import Retirement
from penstock.spark.versions.retiring import retire

TIMEOUT_S: Final = 120.0
ELSEWHERE: Final = RunRecord(
    id="far",
    host="host-7",
    pid=4711,
    processes="another kernel",
    started="1",
    since="2026-11-15T08:00:00+00:00",
    seen="2026-11-15T09:00:00+00:00",
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


def wait_for(what: str, is_so: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@contextmanager
def _running(spark: SparkSession, url: str, store: str) -> Iterator[Pipeline]:
    """The first version of a pipeline that copies records, running."""
    with Pipeline("usage", url, spark=spark, checkpoints=store, engine="python") as pipe:
        pipe.write(pipe.read("orders").select("key", "value"), "copies")
        pipe.start()
        yield pipe


def _previous(connection: Connection, store: str) -> Version:
    """Make another version of the pipeline the current one."""
    connection.create_topic("copies.v2", 1)
    register = Register(connection)
    register.begin("usage", "v2", {"copies": "record"}, store)
    register.caught_up("usage", "v2")
    register.switch("usage", "v2", expected="v1")
    return register.find("usage", "v1")


def _send(connection: Connection, *values: str) -> None:
    for value in values:
        connection.send("orders", value)
    connection.flush(30)


def _copies(connection: Connection) -> list[str]:
    if "copies" not in connection.topics():
        return []
    return [(record.value or b"").decode() for record in connection.read("copies")]


def _state(pipe: Pipeline) -> str:
    return pipe.progress()["copies"].state


def test_a_run_ends_by_itself_and_only_then_are_its_checkpoints_deleted(
    spark: SparkSession, connection: Connection, log_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "LOOK_EVERY_S", 0.1)
    connection.create_topic("orders", 1)
    _send(connection, "a", "b")
    folder = StateFolder(store, spark).below("usage")
    with _running(spark, log_url, store) as pipe:
        wait_for("the first batch", lambda: _copies(connection) == ["a", "b"])
        [record] = RunRecords(folder).unfinished()
        assert record.pid == os.getpid()
        waiting = threading.Thread(target=pipe.wait)  # as `run` does: both it and the watch end the run
        waiting.start()
        retired = retire(connection, _previous(connection, store), spark=spark)
        assert retired.stopped == (str(record),)
        waiting.join(TIMEOUT_S)
        watches = [each for each in threading.enumerate() if each.name == "penstock-retirement"]
        assert not watches, "neither has waited for the other in vain"
        assert pipe.wait(0.0), "it has ended"
        assert _state(pipe) == "stopped", "which is no failure"
    assert not folder.names()
    assert Register(connection).find("usage", "v1").state == "retired"


def test_a_driver_that_was_cut_off_writes_nothing_after_its_version_was_retired(
    spark: SparkSession, connection: Connection, log_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retirement, "watch", lambda *arguments: None)  # as if it stood still
    connection.create_topic("orders", 1)
    _send(connection, "a")
    with _running(spark, log_url, store) as pipe:
        wait_for("the first batch", lambda: _copies(connection) == ["a"])
        entry = _previous(connection, store)
        with pytest.raises(PipelineRunningError, match=rf"process {os.getpid()} on host .* --force"):
            retire(connection, entry, spark=spark, stop_s=0.0)
        assert StateFolder(store, spark).below("usage", "copies").names()
        retire(connection, Register(connection).find("usage", "v1"), spark=spark, stop_s=0.0, force=True)
        _send(connection, "b")
        wait_for("the end of the query", lambda: pipe.wait(0.1))
        assert _state(pipe) == "stopped"
    assert _copies(connection) == ["a"]


def test_a_driver_that_was_cut_off_in_a_batch_does_not_start_again_from_nothing(
    spark: SparkSession, connection: Connection, log_url: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are gone, so the batch fails, and the next attempt would begin at the earliest record."""
    monkeypatch.setattr(Retirement, "watch", lambda *arguments: None)
    connection.create_topic("orders", 1)
    _send(connection, "a")
    handled: list[str] = []
    cut, healed = threading.Event(), threading.Event()

    def handle(frame: DataFrame, batch_id: int) -> None:
        handled.extend(bytes(row["value"]).decode() for row in frame.collect())
        if handled[-1] == "b":
            cut.set()
            assert healed.wait(TIMEOUT_S)
            raise OSError("its folder is gone")

    again = Restart(attempts=3, first_delay_s=0.1, max_delay_s=0.1)
    with Pipeline("usage", log_url, spark=spark, checkpoints=store, engine="python", restart=again) as pipe:
        pipe.write(pipe.read("orders").select("value"), handle, name="copies")
        pipe.start()
        wait_for("the first batch", lambda: handled == ["a"])
        _send(connection, "b")
        assert cut.wait(TIMEOUT_S)
        retire(connection, _previous(connection, store), spark=spark, stop_s=0.0, force=True)
        healed.set()
        wait_for("the end of the query", lambda: pipe.wait(0.1))
        assert _state(pipe) == "stopped"
    assert handled == ["a", "b"]


def test_a_version_that_may_run_on_another_host_is_kept_until_that_is_known_to_be_dead(
    spark: SparkSession, connection: Connection, log_url: str, store: str
) -> None:
    connection.create_topic("orders", 1)
    _send(connection, "a")
    with _running(spark, log_url, store):
        wait_for("the first batch", lambda: _copies(connection) == ["a"])
    records = StateFolder(store, spark).below("usage", "runs")
    assert not records.names(), "it has ended, and says so"
    records.write("far.json", msgspec.json.encode(ELSEWHERE).decode())
    entry = _previous(connection, store)
    with pytest.raises(PipelineRunningError, match=r"process 4711 on host host-7 .*last seen 2026-11-15T09:00"):
        retire(connection, entry, spark=spark, stop_s=0.0)
    assert StateFolder(store, spark).below("usage", "copies").names()
    entry = Register(connection).find("usage", "v1")
    assert entry.state == "retiring"
    with pytest.raises(PipelineError, match="is being retired"):
        Register(connection).switch("usage", "v1", expected="v2")
    retired = retire(connection, entry, spark=spark, stop_s=0.0, force=True)
    assert retired.stopped == (), "nobody was seen to end"
    assert not StateFolder(store, spark).below("usage").names()


def test_a_run_that_starts_while_its_version_is_retired_does_not_begin(
    spark: SparkSession, connection: Connection, log_url: str, store: str
) -> None:
    """It was allowed to run when the program was read, and has taken its time to start."""
    connection.create_topic("orders", 1)
    _send(connection, "a")
    with Pipeline("usage", log_url, spark=spark, checkpoints=store, engine="python") as pipe:
        pipe.write(pipe.read("orders").select("key", "value"), "copies")
        retire(connection, _previous(connection, store), spark=spark)
        with pytest.raises(PipelineError, match="was retired"):
            pipe.start()
    assert not StateFolder(store, spark).below("usage", "runs").names()
    assert _copies(connection) == []


def test_a_killed_process_of_this_machine_is_known_to_have_ended(spark: SparkSession, store: str) -> None:
    records = RunRecords(StateFolder(store, spark))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: process.pid)
            records.begin()
        others = RunRecords(StateFolder(store, spark))
        assert [each.pid for each in others.unfinished()] == [process.pid]
    finally:
        process.kill()
        process.wait()
    assert others.unfinished() == []
    assert not StateFolder(store, spark).below("runs").names()


def test_a_record_of_a_run_that_cannot_be_read_is_not_ignored(spark: SparkSession, store: str) -> None:
    folder = StateFolder(store, spark)
    folder.below("runs").create()
    folder.below("runs").write("x.json", "{")
    with pytest.raises(PipelineError, match=r"runs/x\.json is damaged"):
        RunRecords(folder).unfinished()


def test_a_look_that_fails_does_not_end_the_watch(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "LOOK_EVERY_S", 0.01)
    watched = Retirement(connection, "usage", "v1")
    answers: Iterator[Exception | bool] = iter([OSError("the store is away"), PipelineError("so is the stream"), True])
    ended = threading.Event()

    def look() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watched, "has_begun", look)
    watched.watch(ended.set, lambda: None)
    assert ended.wait(TIMEOUT_S)
    watched.stop()


def test_a_stream_that_cannot_keep_versions_is_not_asked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "LOOK_EVERY_S", 0.01)
    with penstock.connect(f"file:{tmp_path / 'files'}") as stream:
        monkeypatch.setattr(stream, "open_topic", lambda topic: pytest.fail("it was asked"))
        watched = Retirement(stream, "usage", "v1")
        assert not watched.has_begun()
        watched.check()
        watched.watch(lambda: pytest.fail("it was retired"), lambda: None)
        assert not [each for each in threading.enumerate() if each.name == "penstock-retirement"]
