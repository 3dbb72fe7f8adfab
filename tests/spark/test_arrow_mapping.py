"""Headers come to Python, and back, as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from penstock.spark.values.arrow_mapping import map_in_arrow
from penstock.spark.values.columns import HEADERS

Header = tuple[str | None, bytes | None]

ROWS = StructType([StructField("n", LongType()), StructField("the headers", HEADERS), StructField("more", HEADERS)])


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        assert batch.schema.field("more").type == batch.schema.field("the headers").type
        assert pa.types.is_list(batch.schema.field("more").type)
        yield batch


@pytest.mark.parametrize(
    "headers",
    [
        [None, None],
        [[], None],
        [[("a", b"1"), ("a", None), ("a", b"")], [("b", bytes(range(256)))]],
        [[("", b"\xff"), ('"\\\n\u2028\U0001f600', b"{}")], None],
        [[(None, b"1")], [None, ("a", b"2")]],
    ],
    ids=["none", "empty", "several", "odd names", "nothing where something should be"],
)
def test_headers_are_the_same_on_both_sides(spark: SparkSession, headers: list[list[Header | None] | None]) -> None:
    frame = spark.createDataFrame([(n, each, None) for n, each in enumerate(headers)], ROWS).coalesce(1)
    mapped = map_in_arrow(frame, pass_on, ROWS)
    assert mapped.schema == ROWS
    assert mapped.collect() == frame.collect()


def test_frames_without_headers_go_as_they_are(spark: SparkSession) -> None:
    plain = spark.range(3)
    assert map_in_arrow(plain, lambda batches: batches, plain.schema).collect() == plain.collect()


def test_plans_show_the_function_by_its_own_name(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], ROWS)
    plan = map_in_arrow(frame, pass_on, ROWS)._jdf.queryExecution().analyzed().toString()
    assert "pass_on(" in plan
