"""Folders as targets: a batch brings its files once, whole, and under names of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import CheckpointMismatchError, ConfigError, FencedError, PipelineError, SchemaMismatchError
from penstock.spark import Folder
from penstock.spark.sink.folders.file_delivery import FolderDelivery, ManifestFolder
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity, Target


class Killed(BaseException):
    """Stands for the end of the driver's process."""


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[..., Delivery]]:
    opened: list[Delivery] = []

    def open_one(target: Target, mode: Any = "append") -> Delivery:
        opened.append(target.open(replace(identity, mode=mode)))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()


def ids_in(spark: SparkSession, folder: Folder) -> list[int]:
    """What a plain reader of Spark, or of Delta, sees."""
    if folder.format == "delta":
        import deltalake

        return sorted(deltalake.DeltaTable(folder.path).to_pyarrow_table().column("id").to_pylist())
    reader = spark.read.schema("id long, odd boolean")
    options = {"header": "true"} if folder.format == "csv" else {}
    return sorted(row.id for row in reader.options(**options).format(folder.format).load(folder.path).collect())


@pytest.mark.parametrize("form", ["parquet", "json", "csv", "delta"])
def test_each_batch_is_there_once(
    spark: SparkSession, tmp_path: Path, open_target: Callable[..., Delivery], form: Any
) -> None:
    if form == "delta":
        pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    folder = Folder(str(tmp_path / "results"), form, partition_by=["odd"])
    frame = spark.range(10).withColumn("odd", F.col("id") % 2 == 1)
    folder.check(frame.schema, "append")
    first = open_target(folder)
    assert first.deliver(frame, 0) == Delivered(10)
    assert first.deliver(frame, 0).repeated
    second = open_target(folder)
    assert second.deliver(frame, 0).repeated
    second.deliver(frame.withColumn("id", F.col("id") + 10), 1)
    assert ids_in(spark, folder) == list(range(20))
    assert (tmp_path / "results" / "odd=true").is_dir()
    with pytest.raises(CheckpointMismatchError):
        second.deliver(frame, 0)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_complete_mode_overwrites(
    spark: SparkSession, tmp_path: Path, open_target: Callable[..., Delivery], form: Any
) -> None:
    if form == "delta":
        pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    folder = Folder(str(tmp_path / "results"), form)
    delivery = open_target(folder, "complete")
    delivery.deliver(spark.range(10), 0)
    delivery.deliver(spark.range(3), 1)
    assert ids_in(spark, folder) == [0, 1, 2]
    delivery.deliver(spark.range(0), 2)
    assert ids_in(spark, folder) == []


@pytest.mark.parametrize("step", ["_write", "add", "_apply"])
def test_a_batch_counts_once_wherever_the_driver_dies(
    spark: SparkSession,
    tmp_path: Path,
    open_target: Callable[..., Delivery],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    folder = Folder(str(tmp_path / "results"))
    first = open_target(folder)
    first.deliver(spark.range(5), 0)
    owner: Any = ManifestFolder if step == "add" else FolderDelivery
    real = getattr(owner, step)

    def die(self: Any, *given: Any) -> None:
        if step == "_apply":  # in the middle of it: the first of the files is in its place
            (manifest,) = given
            source, place = manifest.files[0]
            os.rename(tmp_path / "results" / manifest.staging / source, tmp_path / "results" / place)
        else:
            real(self, *given)
        raise Killed

    monkeypatch.setattr(owner, step, die)
    with pytest.raises(Killed):
        first.deliver(spark.range(5, 15, 1, 2), 1)
    monkeypatch.undo()
    if step == "_write":
        assert ids_in(spark, folder) == list(range(5))
    second = open_target(folder)
    assert second.deliver(spark.range(5, 15, 1, 3), 1) == Delivered(10, repeated=step != "_write")
    assert ids_in(spark, folder) == list(range(15))
    assert not list((tmp_path / "results" / "_penstock").rglob("staged-*"))


def test_an_older_run_is_fenced(spark: SparkSession, tmp_path: Path, open_target: Callable[..., Delivery]) -> None:
    folder = Folder(str(tmp_path / "results"))
    older, newer = open_target(folder), open_target(folder)
    newer.deliver(spark.range(5), 0)
    with pytest.raises(FencedError):
        older.deliver(spark.range(5), 0)
    newer.deliver(spark.range(5, 9), 1)
    with pytest.raises(FencedError):
        older.deliver(spark.range(5, 9), 1)
    assert ids_in(spark, folder) == list(range(9))


def test_what_a_folder_cannot_do_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema = spark.range(1).withColumn("many", F.array(F.lit(1))).schema
    folder = str(tmp_path / "x")
    with pytest.raises(ConfigError, match=r"SqlTable\(\.\.\., key="):
        Folder(folder).check(schema, "update")
    with pytest.raises(SchemaMismatchError, match="which CSV cannot hold"):
        Folder(folder, "csv").check(schema, "append")
    with pytest.raises(SchemaMismatchError, match="to partition by"):
        Folder(folder, partition_by="day").check(schema, "append")
    with pytest.raises(ConfigError, match="must be one of"):
        Folder(folder, "orc")  # type: ignore[arg-type]


def test_rows_that_executors_wrote_elsewhere_are_not_taken_for_delivered(
    identity: QueryIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = FolderDelivery(str(tmp_path / "out"), "parquet", (), identity, "folder out")
    monkeypatch.setattr(delivery, "_write", lambda frame, staging: 5)  # on hosts whose folder of this name is another
    with pytest.raises(PipelineError, match="5 rows of batch 0 were written to folder out, but the driver finds no"):
        delivery.deliver(cast(DataFrame, None), 0)
    assert ManifestFolder(str(tmp_path / "out"), identity.id).batches() == []
