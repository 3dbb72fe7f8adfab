"""Pipelines as they are found in their folders, by who has no Spark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.observe import pipelines
from penstock.observe.pipelines import PipelineEvent, find_pipelines, is_running, pipeline_events

HOLDER = """
import fcntl, os, sys
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
lock.seek(0); lock.truncate(); lock.write(f"{os.getpid()}\\n"); lock.flush()
print("held", flush=True)
sys.stdin.read()
"""


def make(folder: Path, name: str, **query: object) -> Path:
    own = folder / name
    own.mkdir(parents=True)
    (own / "pipeline.json").write_text(json.dumps({"format": 1, "pipeline": name.partition("@")[0]}))
    if query:
        (own / "progress.json").write_text(json.dumps({"pipeline": name, "queries": [query]}))
    return own


def test_each_version_is_a_pipeline_with_its_queries(tmp_path: Path) -> None:
    make(tmp_path, "usage", query="spend", state="running", batch_id=7, lag=3, rows_per_s=1.5, at=12.5)
    make(tmp_path, "usage@v2")
    (tmp_path / "no-pipeline").mkdir()
    found = find_pipelines(tmp_path)
    assert list(found) == ["usage", "usage@v2"]
    (query,) = found["usage"].queries
    assert (query.query, query.state, query.batch_id, query.lag, query.rows_per_s) == ("spend", "dead", 7, 3, 1.5)
    assert query.at_ms == 12_500
    assert found["usage@v2"].queries == ()
    assert not found["usage"].is_running


@pytest.mark.parametrize(
    ("queries", "is_running", "state"),
    [
        (["running", "running"], True, "running"),
        (["running", "starting"], True, "starting"),
        (["running", "waiting"], True, "waiting"),
        (["running", "failed"], True, "failed"),
        (["stopped", "failed"], False, "failed"),
        (["running", "stopped"], False, "dead"),
        (["waiting"], False, "dead"),
        (["finished", "finished"], False, "finished"),
        (["finished", "stopped"], False, "stopped"),
        ([], False, "stopped"),
        ([], True, "running"),
    ],
)
def test_the_state_of_a_pipeline_is_the_worst_of_its_queries_and_never_running_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries: list[str], is_running: bool, state: str
) -> None:
    monkeypatch.setattr(pipelines, "is_running", lambda folder, locks: is_running)
    own = make(tmp_path, "usage")
    told = [{"query": str(number), "state": each} for number, each in enumerate(queries)]
    (own / "progress.json").write_text(json.dumps({"pipeline": "usage", "queries": told}))
    assert find_pipelines(tmp_path)["usage"].state == state


def test_a_folder_that_is_not_there_has_no_pipelines_and_is_not_made(tmp_path: Path) -> None:
    assert find_pipelines(tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"queries": 3}', '{"queries": [3, null, {"batch_id": "x"}]}'])
def test_progress_that_makes_no_sense_hides_no_pipeline(tmp_path: Path, text: str) -> None:
    own = make(tmp_path, "usage")
    (own / "progress.json").write_text(text)
    assert list(find_pipelines(tmp_path)) == ["usage"]


@pytest.mark.parametrize("kernel_tells", [True, False])
def test_a_pipeline_runs_while_its_lock_is_held(
    tmp_path: Path, kernel_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_tells:
        monkeypatch.setattr(pipelines, "_LOCKS", tmp_path / "nothing")
    own = make(tmp_path, "usage")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(own / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_running(own)
        assert find_pipelines(tmp_path)["usage"].is_running
    finally:
        holder.kill()
        holder.communicate()
    assert not is_running(own), "a killed process holds nothing, though its number still stands in the file"


def test_the_lock_of_a_pipeline_that_does_not_run_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> None:
        raise AssertionError("one that starts now would have been refused")

    monkeypatch.setattr("fcntl.flock", taken)
    own = make(tmp_path, "usage")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(20)
    for content in ("", "what is this", str(gone.pid), str(os.getpid())):
        (own / "lock").write_text(content)
        assert not is_running(own)


def test_what_happened_is_told_newest_first_and_lines_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    lines = [
        json.dumps({"at": 1.5, "query": "spend", "what": "started", "error": None, "batch_id": -1}),
        "{ cut off",
        json.dumps({"at": 9, "query": "spend", "what": "restarted", "error": "OSError: no", "batch_id": 4}),
        json.dumps({"query": "spend"}),
    ]
    (tmp_path / "happenings.jsonl").write_text("\n".join(lines))
    assert pipeline_events(tmp_path) == [
        PipelineEvent(9_000, "spend", "restarted", "OSError: no", 4),
        PipelineEvent(1_500, "spend", "started", None, -1),
    ]
    assert len(pipeline_events(tmp_path, limit=1)) == 1
    assert pipeline_events(tmp_path / "elsewhere") == []


def test_nothing_of_spark_is_needed_to_look() -> None:
    program = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
import penstock.observe.stream_observer, penstock.observe.watching, penstock.observe.pipelines
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_pipeline_writes_down_is_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from penstock.spark.run import checkpoint_folder, progress
    from penstock.spark.run import progress as written
    from penstock.spark.run.failures import failure_of
    from penstock.spark.run.state_folder import StateFolder

    assert (written.HISTORY_FILE, progress.PROGRESS_FILE, checkpoint_folder.LOCK) == (
        pipelines.HISTORY_FILE,
        pipelines.PROGRESS_FILE,
        pipelines.LOCK_FILE,
    )
    folder = checkpoint_folder.CheckpointFolder("usage", StateFolder(str(tmp_path / "usage")))
    folder.open()
    try:
        assert find_pipelines(tmp_path)["usage"].is_running
        book = progress.ProgressTracker("usage")
        book.write_to(folder.folder)
        book.set_state("spend", "running")
        book.set_state("spend", "waiting", failure_of(OSError("the disk is full\nand more")), restarted=True)
        book.set_state("spend", "running")
        book.set_state("spend", "stopped")
    finally:
        folder.close()
    told = [(each.what, each.error) for each in pipeline_events(tmp_path / "usage")]
    assert told == [("stopped", None), ("restarted", "OSError: the disk is full and more"), ("started", None)]
    (query,) = find_pipelines(tmp_path)["usage"].queries
    assert (query.state, query.restarts) == ("stopped", 1)


def test_a_pipeline_that_always_fails_does_not_fill_the_disk_with_its_history(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from penstock.spark.run.progress import LONGEST_ERROR, MOST_LINES, PipelineHistory
    from penstock.spark.run.state_folder import StateFolder

    (tmp_path / "happenings.jsonl").write_text('{"at": 1}\n' * 1_000)
    PipelineHistory(StateFolder(str(tmp_path))).add(2.0, "spend", "failed", "x" * 100_000, 3)
    lines = (tmp_path / "happenings.jsonl").read_text().splitlines()
    assert len(lines) == MOST_LINES
    assert len(pipeline_events(tmp_path)[0].error or "") == LONGEST_ERROR


@pytest.mark.parametrize(
    ("state", "host", "shown"),
    [
        ("running", socket.gethostname(), "dead"),
        ("waiting", None, "dead"),
        ("running", "another-host", "running"),
        ("failed", socket.gethostname(), "failed"),
        ("finished", socket.gethostname(), "finished"),
    ],
)
def test_a_query_whose_process_is_gone_is_not_shown_as_running(
    tmp_path: Path, state: str, host: str | None, shown: str
) -> None:
    own = tmp_path / "usage"
    own.mkdir()
    (own / "pipeline.json").write_text('{"format": 1, "pipeline": "usage"}')
    written = {"pipeline": "usage", "pid": 4_000_000, "host": host, "queries": [{"query": "spend", "state": state}]}
    (own / "progress.json").write_text(
        json.dumps({name: value for name, value in written.items() if value is not None})
    )
    facts = find_pipelines(tmp_path)["usage"]
    assert not facts.is_running
    assert [query.state for query in facts.queries] == [shown]
