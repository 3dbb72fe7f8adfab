"""Lake tables as targets of pipelines: each batch counts once, by key or appended, in both formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock
from penstock.errors import CheckpointMismatchError, ConfigError, FencedError, SchemaMismatchError
from penstock.lakes import LakeTable
from penstock.spark import Folder, Pipeline
from penstock.spark.pipeline import target_of
from penstock.spark.sink import staging
from penstock.spark.sink.folders import lake
from penstock.spark.sink.folders.lake import LakeTarget
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity, Target
from tests.lakes.readers import FORMATS, rows_of, uri_of


@pytest.fixture(params=FORMATS)
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return uri_of(request.param, tmp_path)


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[..., Delivery]]:
    opened: list[Delivery] = []

    def open_one(target: Target, mode: Any = "append") -> Delivery:
        opened.append(target.open(replace(identity, mode=mode)))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()


def ids_in(uri: str) -> list[int]:
    return sorted(row["id"] for row in rows_of(uri))


def test_each_batch_is_in_a_lake_table_once(
    spark: SparkSession, uri: str, open_target: Callable[..., Delivery]
) -> None:
    target = LakeTarget(LakeTable(uri))
    frame = spark.range(10).withColumn("odd", F.col("id") % 2 == 1)
    target.check(frame.schema, "append")
    first = open_target(target)
    assert first.deliver(frame, 0) == Delivered(10)
    assert first.deliver(frame, 0).repeated
    second = open_target(target)
    assert second.deliver(frame, 0).repeated
    second.deliver(frame.withColumn("id", F.col("id") + 10), 1)
    assert ids_in(uri) == list(range(20))
    with pytest.raises(CheckpointMismatchError):
        second.deliver(frame, 0)


def test_of_two_drivers_with_one_batch_one_commits(
    spark: SparkSession, uri: str, open_target: Callable[..., Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits between this one's look at the table and its commit."""
    target = LakeTarget(LakeTable(uri))
    older, newer = open_target(target), open_target(target)
    older.deliver(spark.range(3), 0)
    real = staging.stage

    def stage(*given: Any, **named: Any) -> Any:
        staged = real(*given, **named)
        monkeypatch.undo()
        newer.deliver(spark.range(3, 6), 1)
        newer.deliver(spark.range(6, 9), 2)
        return staged

    monkeypatch.setattr(lake, "stage", stage)
    with pytest.raises(FencedError, match="another run of query 'spend'"):
        older.deliver(spark.range(3, 6), 1)
    assert ids_in(uri) == list(range(9))


def test_rows_replace_those_of_their_key_and_delete_them(
    spark: SparkSession, uri: str, open_target: Callable[..., Delivery]
) -> None:
    target = LakeTarget(LakeTable(uri, key="id", deletes="is_gone"))
    columns = "id long, name string, is_gone boolean"
    frame = spark.createDataFrame([(1, "a", False), (2, "b", None), (3, "c", False)], columns)
    target.check(frame.schema, "update")
    delivery = open_target(target, "update")
    delivery.deliver(frame, 0)
    changes = [(1, "x", False), (2, None, True), (1, "y", False), (9, None, True)]
    delivery.deliver(spark.createDataFrame(changes, columns).coalesce(1), 1)
    assert sorted(rows_of(uri), key=lambda row: row["id"]) == [{"id": 1, "name": "y"}, {"id": 3, "name": "c"}]
    with pytest.raises(SchemaMismatchError, match="a row has no 'id'"):
        delivery.deliver(spark.createDataFrame([(None, "x", False)], columns), 2)


def test_columns_are_added_if_the_table_evolves(
    spark: SparkSession, uri: str, open_target: Callable[..., Delivery]
) -> None:
    open_target(LakeTarget(LakeTable(uri))).deliver(spark.range(3), 0)
    wider = spark.range(3, 5).withColumn("at", F.timestamp_seconds("id")).withColumn("tags", F.array(F.lit("x")))
    open_target(LakeTarget(LakeTable(uri))).deliver(wider, 1)
    found = sorted(rows_of(uri), key=lambda row: row["id"])
    assert [row["tags"] for row in found] == [None, None, None, ["x"], ["x"]]
    assert found[4]["at"].timestamp() == 4
    fixed = LakeTarget(LakeTable(uri, evolve=False))
    with pytest.raises(SchemaMismatchError, match="no column 'more', and evolve is off"):
        fixed.check(wider.withColumn("more", F.lit(1)).schema, "append")
    with pytest.raises(SchemaMismatchError, match="column 'id' is int64, and the rows have string"):
        fixed.check(spark.range(1).select(F.col("id").cast("string")).schema, "append")


def test_complete_mode_replaces_the_table(spark: SparkSession, uri: str, open_target: Callable[..., Delivery]) -> None:
    delivery = open_target(LakeTarget(LakeTable(uri)), "complete")
    for batch, count in enumerate((10, 3, 0)):
        delivery.deliver(spark.range(count), batch)
        assert ids_in(uri) == list(range(count))


def test_what_a_lake_table_cannot_do_is_refused(spark: SparkSession, uri: str) -> None:
    schema = spark.range(1).schema
    with pytest.raises(ConfigError, match="set key='COLUMN'"):
        LakeTarget(LakeTable(uri)).check(schema, "update")
    with pytest.raises(SchemaMismatchError, match="for the key"):
        LakeTarget(LakeTable(uri, key="number")).check(schema, "update")
    with pytest.raises(SchemaMismatchError, match="for deletes"):
        LakeTarget(LakeTable(uri, key="id", deletes="gone")).check(schema, "update")
    with pytest.raises(SchemaMismatchError, match="must be boolean"):
        LakeTarget(LakeTable(uri, key="id", deletes="id")).check(schema, "update")
    target = target_of(LakeTable(uri), cast(Any, None))
    assert isinstance(target, LakeTarget)
    assert target.for_version("v2").table.uri == f"{uri}{'.v2' if uri.startswith('delta') else '_v2'}"


def test_a_pipeline_fills_a_lake_table_and_offsets_lead_to_its_versions(
    spark: SparkSession, tmp_path: Path, uri: str, url: str, topic: str
) -> None:
    table = LakeTable(uri, key="key")

    def run() -> None:
        pipe = Pipeline("lake", url, spark=spark, checkpoints=str(tmp_path / "checkpoints"))
        frame = pipe.read(topic).selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        pipe.write(frame, table, name="rows")
        pipe.run(once=True)

    with penstock.connect(url) as connection:
        connection.admin().provide(topic, 1, {})
        for number in range(6):
            connection.send(topic, str(number).encode(), key=str(number % 3).encode()).result(timeout=10)
        run()
        first = table.open().version()
        connection.send(topic, b"new", key=b"0").result(timeout=10)
        run()
    second = table.open().version()
    assert first is not None
    assert second is not None
    assert {row["key"]: row["value"] for row in rows_of(uri)} == {"0": "new", "1": "4", "2": "5"}
    assert table.offsets_of(first) == {(topic, 0): 6}
    assert table.offsets_of(second, group="lake/rows") == {(topic, 0): 7}
    assert table.version_of(topic, 0, 5) == first
    assert table.version_of(topic, 0, 6) == second


def test_a_folder_of_delta_is_a_lake_table_that_keeps_its_columns(
    spark: SparkSession, tmp_path: Path, open_target: Callable[..., Delivery]
) -> None:
    uri = uri_of("delta", tmp_path)
    folder = Folder(str(tmp_path / "orders"), "delta")
    delivery = open_target(folder)
    delivery.deliver(spark.range(3), 0)
    with pytest.raises(SchemaMismatchError, match="no column 'new'"):
        delivery.deliver(spark.range(3, 5).withColumn("new", F.lit(1)), 1)
    assert ids_in(uri) == [0, 1, 2]
