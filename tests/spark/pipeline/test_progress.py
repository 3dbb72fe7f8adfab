"""What is known of queries: for the program, for metrics, for whoever reads the folder."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.observe.serving import serve
from penstock.spark.door import BatchLeft
from penstock.spark.folders import StateFolder
from penstock.spark.progress import REGISTRY, ProgressBook
from penstock.spark.targets import Delivered


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
    book = ProgressBook("lags")
    book.tell_progress("spend", said_by_spark(0, 12, end, latest))
    assert book.now()["spend"].lag == 3 + 0 + 4


def test_lag_is_unknown_where_the_source_tells_no_end() -> None:
    book = ProgressBook("unknown")
    book.tell_progress("spend", said_by_spark(0, 12, {"0": 1}, None))
    assert book.now()["spend"].lag is None


def test_counts_add_up_over_batches_and_a_batch_that_is_told_twice_counts_once() -> None:
    book = ProgressBook("counts")
    for batch, rows in ((0, 10), (1, 5), (1, 5)):
        book.tell_progress("spend", said_by_spark(batch, rows, {"0": 1}, {"0": 1}, dropped=2))
    book.tell_left("spend", BatchLeft(0, [("topic spend", Delivered(4))], late=1))
    book.tell_left("spend", BatchLeft(1, [("topic spend", Delivered(4, repeated=True))], late=0))
    known = book.now()["spend"]
    assert (known.rows_read, known.rows_written, known.rows_late, known.state_rows) == (15, 4, 2 + 2 + 1, 7)
    assert (
        REGISTRY.get_sample_value("penstock_pipeline_rows_read_total", {"pipeline": "counts", "query": "spend"}) == 15
    )


def test_who_looks_into_the_folder_finds_the_last_state(tmp_path: Path) -> None:
    book = ProgressBook("seen")
    book.keep_in(StateFolder(str(tmp_path)))
    book.tell_progress("spend", said_by_spark(3, 10, {"0": 1}, {"0": 4}))
    book.tell_state("spend", "waiting", OSError("the disk is full"), restarted=True)
    (query,) = json.loads((tmp_path / "progress.json").read_text())["queries"]
    assert query["state"] == "waiting"
    assert query["batch_id"] == 3
    assert query["restarts"] == 1
    assert "the disk is full" in query["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["happenings.jsonl", "progress.json"]


def test_metrics_are_served_where_they_are_asked_for() -> None:
    ProgressBook("served").tell_state("spend", "waiting", restarted=True)
    with serve("127.0.0.1:0") as server, urllib.request.urlopen(server.url, timeout=10) as answer:
        assert b'penstock_pipeline_restarts_total{pipeline="served",query="spend"} 1.0' in answer.read()


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        serve(address)
