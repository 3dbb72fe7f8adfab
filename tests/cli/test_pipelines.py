"""`penstock pipelines`: how pipelines get on, by what they leave in their folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.dead_letters import open_dead_letters
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.console.letters_of_tests import letter
from tests.observe.test_pipelines import make
from tests.servers import free_ports

pytest.importorskip("pyspark", reason="pyspark is not installed: it comes with penstock[spark]")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """As by the process that runs it: this one."""
    with (folder / "lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_each_pipeline_is_a_line_with_its_state(run: Command, stream: penstock.Connection, tmp_path: Path) -> None:
    name, letters = f"usage-{fresh()}", f"{fresh()}.dlq"
    with contextlib.closing(open_dead_letters(letters, stream)) as opened:
        opened.put([replace(letter("orders", number), group=name) for number in range(2)])
    counts = {"rows_late": 3, "restarts": 2, "lag": 1_234, "rows_per_s": 56.7, "batch_id": 7}
    own = make(tmp_path, name, query="spend", state="running", batch_at=time.time() - 9_000 - 10, **counts)
    make(tmp_path, f"{name}@v2", query="spend", state="running", batch_id=1, batch_at=time.time())
    failed = {"error": "ValueError: no price, at usage.py:3 in f", "error_file": "/checkpoints/error.txt"}
    make(tmp_path, "failing", query="spend", state="failed", **failed)
    with held(own):
        done = run.well("pipelines", "--checkpoints", str(tmp_path))
        as_json = run.well("pipelines", "--checkpoints", str(tmp_path), "--json").json
    rows = {tuple(line[:2]): line[2:] for line in done.table}
    assert rows[name, "v1"] == ["running", "1,234", "57", "7,", "2", "h", "30", "min", "ago", "2", "3", "2"]
    assert rows[name, "v2"][0] == "dead", "its process is gone, whatever it said last"
    assert rows["failing", "v1"][0] == "failed"
    assert "failing.spend: ValueError: no price, at usage.py:3 in f (with tracebacks in /checkpoints/error" in done.err
    assert f"{name}@v2 is dead" in done.err
    told = {(row["pipeline"], row["version"]): row for row in as_json}
    assert told[name, "v1"]["dead_letters"] == 2
    assert told[name, "v1"]["queries"][0]["lag"] == 1_234
    assert told[name, "v2"]["rows_per_s"] is None, "nothing is fast that does not run"


def test_one_pipeline_is_shown_with_its_queries_and_its_history(run: Command, tmp_path: Path) -> None:
    own = make(tmp_path, "usage", query="spend", state="failed", batch_id=4, rows_refused=1_003, error="OSError: no")
    (own / "happenings.jsonl").write_text('{"at": 1.5, "query": "spend", "what": "failed", "error": "OSError: no"}\n')
    done = run.well("pipelines", "show", "usage", "--checkpoints", str(tmp_path))
    assert "spend  failed" in done.out
    assert "1,003" in done.out
    assert "refused" in done.out
    assert "1970-01-01T00:00:01.500Z  spend failed: OSError: no" in done.out
    assert "usage is failed" in done.err
    shown = run.well("pipelines", "show", "usage", "--checkpoints", str(tmp_path), "--json").json
    assert shown["history"][0]["what"] == "failed"
    done = run("pipelines", "show", "usage@v7", "--checkpoints", str(tmp_path))
    assert (done.code, "there is usage" in done.err) == (1, True)


def test_bad_rows_are_counted_by_what_they_failed_in_the_run_and_in_the_last_batch(
    run: Command, tmp_path: Path
) -> None:
    bad = {"bad_rows": {"function f": 1_204, "expectation positive": 3}, "rows_bad": 1_204, "rows_dropped": 3}
    make(tmp_path, "usage", query="spend", state="stopped", batch_id=4, batch_bad_rows={"function f": 17}, **bad)
    done = run.well("pipelines", "show", "usage", "--checkpoints", str(tmp_path))
    told = "expectation positive 3 (0 in the last batch), function f 1,204 (17 in the last batch)"
    assert f"Bad rows of spend: {told}" in " ".join(done.err.split())
    assert {"bad", "dropped", "1,204"} <= set(done.out.split())
    shown = run.well("pipelines", "show", "usage", "--checkpoints", str(tmp_path), "--json").json
    assert shown["queries"][0]["batch_bad_rows"] == {"function f": 17}


def test_where_there_is_none_it_says_how_to_run_one(run: Command, tmp_path: Path) -> None:
    done = run.well("pipelines", "--checkpoints", str(tmp_path / "none"))
    assert "penstock run FILE.py" in done.err
    assert str(tmp_path / "none") in done.err
    assert run.well("pipelines", "--checkpoints", str(tmp_path), "--json").json == []


def test_pipelines_are_listed_while_the_stream_is_away(tmp_path: Path) -> None:
    make(tmp_path, "usage", query="spend", state="stopped", batch_id=4)
    (port,) = free_ports(1)
    done = ForkedCommand(f"kafka://127.0.0.1:{port}").well("pipelines", "--checkpoints", str(tmp_path), "--json")
    (row,) = done.json
    assert (row["state"], row["dead_letters"]) == ("stopped", None)
    assert "Dead letters cannot be counted" in done.err
