"""Staging: rows reach the driver as they are, by Spark's JVM as by Python workers, and encodings are planned once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Connection
from penstock.spark import TopicTarget
from penstock.spark.sink import staging
from penstock.spark.sink.staging import Encoding, Staged, StagingFolder, stage
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity, Target
from penstock.spark.values.encoding import encode_frame
from tests.spark.sink.frames import numbered, numbers_in, once_each

OF_EVERY_KIND = """
    id, id % 3 = 0 as yes, cast(id % 100 as byte) as b, cast(id as short) as s, cast(id as int) as i,
    cast(id as float) as f, cast(id as double) as d, cast(id as decimal(20, 3)) as m,
    if(id % 2 = 0, null, cast(id as string)) as t,
    cast(cast(id as string) as binary) as raw, date_add(date'2024-02-28', cast(id as int)) as day,
    timestamp_seconds(id * 100000.5) as at, cast(timestamp_seconds(id) as timestamp_ntz) as local,
    array(cast(id as string), null) as words, map('k', id) as counts, struct(id as a, struct('x' as c) as b) as nested,
    if(id % 5 = 0, null, array(struct(cast(id as string) as key, cast('v' as binary) as value))) as headers
"""


@pytest.fixture
def folder(tmp_path: Path) -> StagingFolder:
    return StagingFolder(str(tmp_path / "staging"))


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[[Target], Delivery]]:
    opened: list[Delivery] = []

    def open_one(target: Target) -> Delivery:
        opened.append(target.open(identity))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()


def without_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the session look as if it had been started without our jar."""

    class Missing:
        penstock = type("penstock", (), {"RowStager": object()})

    monkeypatch.setattr(staging, "jvm_of", lambda _: Missing)


def table_of(staged: Staged) -> pa.Table:
    return pa.Table.from_batches(staged.batches()).sort_by("id")


def in_batches(frame: DataFrame, function: Callable[[DataFrame, int], object], folder: Path, batches: int) -> None:
    """Give a streaming frame to a function, batch by batch, as a target gets it."""
    errors: list[BaseException] = []

    def call(batch: DataFrame, number: int) -> None:
        try:
            if number < batches:
                function(batch, number)
        except BaseException as error:
            errors.append(error)

    query = frame.writeStream.foreachBatch(call).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        while query.isActive and not errors and (query.lastProgress is None or query.lastProgress.batchId < batches):
            query.awaitTermination(0.05)  # type: ignore[arg-type]  # fractions are taken
    finally:
        query.stop()
    if errors:
        raise errors[0]


def counted(spark: SparkSession) -> DataFrame:
    """A stream of ten numbers a batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2)
    return rows.load().select(F.col("value").alias("id"))


@pytest.mark.parametrize("inline_bytes", [100, 10 << 20], ids=["in files", "inline"])
def test_the_jvm_stages_what_python_workers_stage(
    spark: SparkSession, folder: StagingFolder, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    frame = spark.sql(f"select {OF_EVERY_KIND} from range(0, 12000, 1, 3)")
    found = stage(frame, folder, 0, inline_bytes)
    without_jar(monkeypatch)
    expected = stage(frame, folder, 1, inline_bytes)
    rows = table_of(expected)
    assert table_of(found).cast(rows.schema).equals(rows)  # workers make headers from text, and do not know of nulls
    assert [(part.partition, part.rows, part.file is None) for part in found.parts] == [
        (part.partition, part.rows, part.file is None) for part in expected.parts
    ]
    assert (len(found.in_files) == 3) is (inline_bytes == 100)
    found.discard()
    assert not (Path(folder.path) / "0").exists()


def test_large_rows_are_staged_in_batches_that_are_bounded(spark: SparkSession, folder: StagingFolder) -> None:
    frame = spark.range(0, 40, 1, 1).select("id", F.repeat(F.lit("x"), F.lit(200_000)).alias("text"))
    staged = stage(frame, folder, 0)
    assert max(batch.nbytes for batch in staged.batches()) < 4 << 20
    assert table_of(staged).num_rows == 40


def test_partitions_without_rows_stage_nothing(spark: SparkSession, folder: StagingFolder) -> None:
    assert stage(spark.range(0, 3, 1, 8).where("id = 1"), folder, 0).rows == 1
    assert stage(spark.range(0), folder, 1).parts == ()


@pytest.mark.parametrize("jar", [True, False], ids=["JVM", "Python"])
def test_an_error_of_a_row_is_raised(
    spark: SparkSession, folder: StagingFolder, monkeypatch: pytest.MonkeyPatch, jar: bool
) -> None:
    if not jar:
        without_jar(monkeypatch)
    frame = spark.range(0, 10, 1, 1).selectExpr("id", "if(id = 7, raise_error('seven'), 'x') as text")
    with pytest.raises(Exception, match="seven"):
        stage(frame, folder, 0)


def test_an_encoding_is_planned_once_for_all_batches_of_a_query(
    spark: SparkSession, tmp_path: Path, folder: StagingFolder
) -> None:
    planned: list[int] = []
    found: list[Any] = []

    def encode(frame: DataFrame) -> DataFrame:
        planned.append(1)
        return encode_frame(frame, "numbers", key="id")

    encoding = Encoding(encode)

    def take(frame: DataFrame, number: int) -> None:
        for batch in stage(frame, folder, number, encoding=encoding).batches():
            found.extend(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))

    in_batches(counted(spark), take, tmp_path, 4)
    assert sorted(found) == sorted((b"%d" % number, b'{"id":%d}' % number) for number in range(40))
    assert len(planned) == 1
    batch = spark.createDataFrame([(1, "a")], "id bigint, name string")
    take(batch, 9)  # other columns
    assert found[-1] == (b"1", b'{"id":1,"name":"a"}')
    assert len(planned) == 2


@pytest.mark.parametrize(
    "column", ["current_timestamp()", "uuid()", "(select max(id) from range(3))"], ids=["time", "random", "subquery"]
)
def test_what_depends_on_more_than_the_row_is_evaluated_for_each_batch(
    spark: SparkSession, tmp_path: Path, folder: StagingFolder, column: str
) -> None:
    found: list[set[Any]] = []
    planned: list[int] = []

    def encode(frame: DataFrame) -> DataFrame:
        planned.append(1)
        return frame.selectExpr("id", f"{column} as made")

    encoding = Encoding(encode)

    def take(frame: DataFrame, number: int) -> None:
        found.append(set(table_of(stage(frame, folder, number, encoding=encoding)).column("made").to_pylist()))

    in_batches(counted(spark), take, tmp_path, 2)
    assert len(planned) == 2
    assert "select" in column or not found[0] & found[1]


def test_an_encoding_in_python_is_evaluated_for_each_batch(
    spark: SparkSession, tmp_path: Path, folder: StagingFolder
) -> None:
    @F.udf("string")
    def shout(number: int) -> str:
        return f"{number}!"

    encoding = Encoding(lambda frame: frame.select("id", shout("id").alias("text")))
    found: list[Any] = []

    def take(frame: DataFrame, number: int) -> None:
        found.extend(table_of(stage(frame, folder, number, encoding=encoding)).column("text").to_pylist())

    in_batches(counted(spark), take, tmp_path, 2)
    assert sorted(found) == sorted(f"{number}!" for number in range(20))


def test_a_frame_that_several_targets_share_is_computed_once(
    spark: SparkSession, tmp_path: Path, folder: StagingFolder
) -> None:
    rows = spark.sparkContext.accumulator(0)

    @F.udf("long")
    def seen(number: int) -> int:
        rows.add(1)
        return number

    encodings = [Encoding(lambda frame: encode_frame(frame, "numbers", key="id")) for _ in range(2)]

    def take(frame: DataFrame, number: int) -> None:
        frame.persist()
        for target, encoding in enumerate(encodings):
            assert stage(frame, folder, 10 * number + target, encoding=encoding).rows == 10
        frame.unpersist()

    in_batches(counted(spark).select(seen("id").alias("id")), take, tmp_path, 2)
    assert rows.value == 20


def test_small_batches_at_least_once_are_sent_by_the_driver_and_large_ones_by_the_tasks(
    spark: SparkSession,
    topic: str,
    url: str,
    sink_connection: Connection,
    open_target: Callable[[Target], Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged: list[int] = []

    def noting(frame: DataFrame, folder: StagingFolder, batch_id: int, **more: Any) -> Staged:
        staged.append(batch_id)
        return stage(frame, folder, batch_id, **more)

    monkeypatch.setattr("penstock.spark.sink.topic_delivery.stage", noting)
    delivery = open_target(TopicTarget(url, topic, partitions=2, guarantee="at-least-once"))  # type: ignore[arg-type]
    sizes = [100, 50, 40_000, 60_000, 10, 20]
    ends = list(itertools.accumulate(sizes, initial=0))
    for batch, (first, end) in enumerate(itertools.pairwise(ends)):
        assert delivery.deliver(numbered(spark, first, end), batch) == Delivered(end - first)
    assert numbers_in(sink_connection, topic) == once_each(0, ends[-1])
    assert staged == [1, 2, 5]  # after the small ones: the size of a batch is known when it has been delivered
