"""OpenLineage events of pipelines: a run for each query, with what it reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import PipelineError
from penstock.lakes.table import LakeTable
from penstock.observe.lineage import report_lineage, stop_lineage
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.datasets import QueryInputs, written
from penstock.spark.run.plans import PlannedSource
from penstock.spark.run.settings import Engine
from penstock.spark.sessions.opening import has_connector
from penstock.spark.sink.folders.folder import Folder
from penstock.spark.sink.folders.lake import LakeTarget
from penstock.spark.sink.sql.table import SqlTable
from tests.lineage_server import WAIT_S, LineageServer, datasets


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LineageServer]:
    monkeypatch.setenv("OPENLINEAGE_URL", (server := LineageServer()).url)
    with server:
        report_lineage()
        yield server
        stop_lineage()


@pytest.fixture
def orders(connection: ps.Connection) -> ps.Connection:
    for number in range(4):
        connection.send("orders", str(number))
    connection.flush(timeout_s=WAIT_S)
    return connection


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_query_reports_its_start_and_its_end_with_what_it_reads_and_writes(
    engine: Engine,
    spark: SparkSession,
    log_url: str,
    orders: ps.Connection,
    endpoint: LineageServer,
    tmp_path: Path,
) -> None:
    if engine == "native" and not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not there: run `penstock spark jars`")
    table = SqlTable(f"sqlite:{tmp_path / 'shop.db'}", "spend", key="pointer")
    with Pipeline("usage", log_url, spark=spark, engine=engine) as pipe:
        frame = pipe.read("orders").selectExpr("CAST(value AS STRING) AS value", "pointer")
        pipe.write(frame, "copies", Folder(str(tmp_path / "out"), "json"), table, name="copy")
        pipe.run(once=True, quiet=True)
    start, complete = endpoint.next(), endpoint.next()
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    for event in (start, complete):
        assert event["job"]["name"] == "usage.copy"
        assert event["job"]["facets"]["jobType"]["jobType"] == "QUERY"
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
        assert datasets(event, "inputs") == [(log_url, "orders")]
        assert datasets(event, "outputs") == sorted(
            [(log_url, "copies"), ("file", str(tmp_path / "out")), (f"sqlite:{tmp_path / 'shop.db'}", "spend")]
        )


def test_a_query_that_fails_and_one_that_is_stopped_say_so(
    spark: SparkSession, log_url: str, orders: ps.Connection, endpoint: LineageServer
) -> None:
    def fail(frame: DataFrame, _: int) -> int:
        raise ValueError("no such customer")

    with Pipeline("failing", log_url, spark=spark) as pipe:
        pipe.write(pipe.read("orders"), fail, name="one")
        with pytest.raises(PipelineError, match="no such customer"):
            pipe.run(once=True, quiet=True)
    assert endpoint.next()["eventType"] == "START"
    failed = endpoint.next()
    assert failed["eventType"] == "FAIL"
    assert "no such customer" in failed["run"]["facets"]["errorMessage"]["message"]
    assert failed["outputs"] == [], "a function has no dataset"

    with Pipeline("stopping", log_url, spark=spark) as pipe:
        pipe.write(pipe.read("orders"), "copies", name="one")
        pipe.start()
        assert endpoint.next()["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        pipe.stop()
    assert endpoint.next()["eventType"] == "ABORT"
    stop_lineage()
    assert endpoint.all() == []


def test_topics_that_match_a_pattern_are_reported_once_a_batch_has_read_them(
    spark: SparkSession, log_url: str, orders: ps.Connection, endpoint: LineageServer
) -> None:
    with Pipeline("matching", log_url, spark=spark) as pipe:
        pipe.write(pipe.read(re.compile("order.*")), "copies", name="one")
        pipe.run(once=True, quiet=True)
    stop_lineage()
    *_, complete = endpoint.all()
    assert complete["eventType"] == "COMPLETE"
    assert datasets(complete, "inputs") == [(log_url, "orders")]


def test_an_endpoint_that_does_not_answer_delays_no_query(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, log_url: str, orders: ps.Connection
) -> None:
    monkeypatch.setattr("penstock.observe.lineage.FLUSH_S", 0.05)
    with LineageServer(hangs=True) as hanging:
        monkeypatch.setenv("OPENLINEAGE_URL", hanging.url)
        report_lineage()
        with Pipeline("hanging", log_url, spark=spark) as pipe:
            pipe.write(pipe.read("orders"), "copies", name="one")
            pipe.run(once=True, quiet=True)
        assert hanging.requested.wait(WAIT_S)
        stop_lineage()
    assert len(list(orders.read("copies"))) == 4


def test_sources_are_named_by_the_stream_that_they_read() -> None:
    planned = [
        PlannedSource("127.0.0.1:41234", ["orders"]),
        PlannedSource("broker:9092,other:9092", ["returns"]),
        PlannedSource("log:/queues/jobs", ["jobs"]),
        PlannedSource(None, []),
    ]
    inputs = QueryInputs(
        planned, "log:/data", {"log:/data", "127.0.0.1:41234"}, {"log:/queues/jobs": "amqp://broker/jobs"}
    )
    assert not inputs.has_patterns
    assert {(each.namespace, each.name) for each in inputs.datasets()} == {
        ("log:/data", "orders"),
        ("kafka://broker:9092", "returns"),
        ("amqp://broker", "jobs"),
    }


def test_lake_tables_are_named_by_their_folder_or_their_catalog() -> None:
    catalog = {"type": "rest", "uri": "https://ann:secret@catalog/v1"}
    tables = [
        LakeTable("delta:s3://bucket/orders"),
        LakeTable("iceberg:/lake#shop.orders"),
        LakeTable("iceberg:shop.orders", catalog=catalog),
    ]
    named = {(each.namespace, each.name) for each in written(LakeTarget(table) for table in tables)}
    assert ("s3://bucket", "orders") in named
    assert ("file", "/lake/shop/orders") in named
    assert any(name == "shop.orders" and "secret" not in namespace for namespace, name in named)
