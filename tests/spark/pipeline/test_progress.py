"""What is known of queries: for the program, for metrics, for whoever reads the folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.errors import ConfigError
from penstock.observe.metrics.serving import serve
from penstock.observe.pipelines import find_pipelines
from penstock.spark.run.batch_writer import BatchOutcome
from penstock.spark.run.failures import failure_of
from penstock.spark.run.progress import REGISTRY, ProgressTracker
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.sink.target import Delivered


def said_by_spark(batch: int, rows: int, end: Any, latest: Any, dropped: int = 0) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 10.0,
        "durationMs": {"triggerExecution": 1500},
        "eventTime": {"watermark": "2026-01-01T00:00:10.000Z"},
        "stateOperators": [{"numRowsTotal": 7, "numRowsDroppedByWatermark": dropped}],
        "sources": [{"description": "penstock", "endOffset": end, "latestOffset": latest}],
    }


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        ({"0": 5, "1": 7}, {"0": 8, "1": 7, "2": 4}),
        (json.dumps({"0": 5, "1": 7}), json.dumps({"0": 8, "1": 7, "2": 4})),
        ({"orders": {"0": 5, "1": 7}}, {"orders": {"0": 8, "1": 7, "2": 4}}),
    ],
)
def test_lag_is_what_is_there_and_not_read_whatever_the_engine(end: Any, latest: Any) -> None:
    book = ProgressTracker("lags")
    book.add_progress("spend", said_by_spark(0, 12, end, latest))
    assert book.now()["spend"].lag == 3 + 0 + 4


def test_lag_is_unknown_where_the_source_tells_no_end() -> None:
    book = ProgressTracker("unknown")
    book.add_progress("spend", said_by_spark(0, 12, {"0": 1}, None))
    assert book.now()["spend"].lag is None


def test_counts_add_up_over_batches_and_a_batch_that_is_told_twice_counts_once() -> None:
    book = ProgressTracker("counts")
    for batch, rows in ((0, 10), (1, 5), (1, 5)):
        book.add_progress("spend", said_by_spark(batch, rows, {"0": 1}, {"0": 1}, dropped=2))
    book.add_batch("spend", BatchOutcome(0, [("topic spend", Delivered(4))], late=1, refused=3))
    book.add_batch("spend", BatchOutcome(1, [("topic spend", Delivered(4, repeated=True))], late=0))
    known = book.now()["spend"]
    assert (known.rows_read, known.rows_written, known.rows_late, known.state_rows) == (15, 4, 2 + 2 + 1, 7)
    assert known.rows_refused == 3
    assert (
        REGISTRY.get_sample_value("penstock_pipeline_rows_read_total", {"pipeline": "counts", "query": "spend"}) == 15
    )


def test_what_a_sink_of_spark_has_written_counts_where_spark_tells_it() -> None:
    book = ProgressTracker("sinks")
    for batch, rows in ((0, -1), (1, 4), (2, 3)):
        progress = said_by_spark(batch, 5, {"0": 1}, {"0": 1})
        book.add_progress("large", {**progress, "sink": {"description": "KafkaTable", "numOutputRows": rows}})
    assert book.now()["large"].rows_written == 7


def test_who_looks_into_the_folder_finds_the_last_state(tmp_path: Path) -> None:
    book = ProgressTracker("seen")
    book.write_to(StateFolder(str(tmp_path)))
    book.add_progress("spend", said_by_spark(3, 10, {"0": 1}, {"0": 4}))
    book.set_state("spend", "waiting", failure_of(OSError("the disk is full")), restarted=True)
    (query,) = json.loads((tmp_path / "progress.json").read_text())["queries"]
    assert query["state"] == "waiting"
    assert query["batch_id"] == 3
    assert query["restarts"] == 1
    assert "the disk is full" in query["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["happenings.jsonl", "progress.json"]


def test_metrics_are_served_where_they_are_asked_for() -> None:
    ProgressTracker("served").set_state("spend", "waiting", restarted=True)
    with serve("127.0.0.1:0") as server, urllib.request.urlopen(server.url, timeout=10) as answer:
        assert b'penstock_pipeline_restarts_total{pipeline="served",query="spend"} 1.0' in answer.read()


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        serve(address)


PROGRAM: Final = """
import sys
import penstock
from penstock.spark import Pipeline

with penstock.connect(sys.argv[1]) as connection:
    connection.send("orders", "1").result(30)
    pipeline = Pipeline("usage", sys.argv[1])
    pipeline.write(pipeline.read("orders"), "copies")
    pipeline.start()
    print("started", flush=True)
    pipeline.wait()
"""


@pytest.mark.xdist_group("spark-cluster")  # it has a JVM of its own
@pytest.mark.timeout(600)
def test_a_program_that_is_interrupted_in_wait_has_stopped_its_pipelines(tmp_path: Path) -> None:
    url = f"log:{tmp_path / 'log'}"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        assert program.stdout is not None
        try:
            said = []
            for line in program.stdout:
                said.append(line)
                if line == "started\n":
                    break
            assert program.poll() is None, "".join(said)
            program.send_signal(signal.SIGINT)
            said += program.stdout.readlines()
            assert program.wait(120) != 0
        finally:
            program.kill()
    folder = tmp_path / "log" / "pipelines"
    assert json.loads((folder / "usage" / "progress.json").read_text())["queries"][0]["state"] == "stopped", said
    assert [query.state for query in find_pipelines(folder)["usage"].queries] == ["stopped"]
