"""Frames to records: raw ones, JSON of any columns, and typed topics."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock.dead_letters import REDRIVE_GROUP_HEADER
from penstock.errors import ConfigError, SchemaMismatchError, SerdeError
from penstock.serde import Topic
from penstock.spark.values.columns import RECORD, WRITTEN
from penstock.spark.values.encoding import check_columns, encode_frame
from penstock.spark.values.typed_encoding import Encoder
from tests.spark.typed.records import AT

AT_TEXT = "2026-11-15T08:00:00.000000Z"


def only(frame: DataFrame) -> Row:
    (row,) = frame.collect()
    return row


def keys(frame: DataFrame) -> list[bytes | None]:
    return [None if row["key"] is None else bytes(row["key"]) for row in frame.collect()]


def a_row(spark: SparkSession) -> DataFrame:
    columns = "customer string, amount double, at timestamp, day date, raw binary, nothing int"
    row = ("ada", 1.5, AT, datetime.date(2026, 11, 15), bytearray(b"\x01"), None)
    frame = spark.createDataFrame([row], columns)
    return frame.withColumn("window", F.window("at", "1 hour"))


def test_any_frame_is_json_for_a_topic_known_by_its_name(spark: SparkSession) -> None:
    written = encode_frame(a_row(spark), "spend", key="customer")
    assert written.schema.simpleString() == WRITTEN.simpleString()
    row = only(written)
    assert bytes(row["key"]) == b"ada"
    assert msgspec.json.decode(bytes(row["value"])) == {
        "customer": "ada",
        "amount": 1.5,
        "at": AT_TEXT,
        "day": "2026-11-15",
        "raw": "AQ==",
        "nothing": None,
        "window": {"start": AT_TEXT, "end": "2026-11-15T09:00:00.000000Z"},
    }
    assert [row[name] for name in ("headers", "topic", "partition", "timestamp")] == [None] * 4


def test_keys_are_the_bytes_that_the_library_makes(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("ž", bytearray(b"\xff"), 7, True, datetime.date(2026, 1, 2))], "s string, b binary, i int, t boolean, d date"
    )
    topic: Topic[Any] = Topic("t")
    row = only(frame).asDict()
    for name in ("s", "b", "i", "t", "d"):
        expected = topic.new_record(b"", key=bytes(row[name]) if name == "b" else row[name]).key
        assert keys(encode_frame(frame, "t", key=name)) == [expected], name
    several = topic.new_record(b"", key=(row["s"], row["i"], row["d"])).key
    assert keys(encode_frame(frame, "t", key=["s", "i", "d"])) == [several]
    assert keys(encode_frame(frame, "t", key=F.col("i") + 1)) == [b"8"]
    assert keys(encode_frame(frame, "t", key=F.lit(None).cast("string"))) == [None]
    assert keys(encode_frame(frame, "t")) == [None]


def test_a_key_that_is_no_column_is_refused(spark: SparkSession) -> None:
    for wrong in ("who", ["customer", "who"], []):
        with pytest.raises(ConfigError, match="key"):
            encode_frame(a_row(spark), "spend", key=wrong)


def record_frame(spark: SparkSession, headers: Sequence[tuple[str, bytes]] = ()) -> DataFrame:
    row = (bytearray(b"k"), bytearray(b"v"), list(headers), "orders", 1, 5, AT, "create")
    return spark.createDataFrame([row], RECORD)


def test_records_are_written_as_they_were_read_but_not_where(spark: SparkSession) -> None:
    redriven = (REDRIVE_GROUP_HEADER, b"billing")
    row = only(encode_frame(record_frame(spark, [("h", b"1"), redriven]), "copy"))
    assert (bytes(row["key"]), bytes(row["value"])) == (b"k", b"v")
    assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [("h", b"1")]
    assert (row["topic"], row["partition"]) == (None, None)
    assert row["timestamp"] is not None


def test_a_partition_that_was_chosen_is_kept(spark: SparkSession) -> None:
    frame = record_frame(spark).select("value", F.lit(3).alias("partition"))
    row = only(encode_frame(frame, "copy"))
    assert (row["key"], bytes(row["value"]), row["partition"]) == (None, b"v", 3)


def test_text_is_written_as_it_is(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", "not json"), ("b", None)], "key string, value string")
    rows = encode_frame(frame, "copy").collect()
    assert [bytes(row["key"]) for row in rows] == [b"a", b"b"]
    assert [row["value"] if row["value"] is None else bytes(row["value"]) for row in rows] == [b"not json", None]


def test_columns_of_records_with_other_types_are_refused_together(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "v", "now")], "key int, value string, timestamp string")
    with pytest.raises(SchemaMismatchError, match=r"key is int, .*; timestamp is string, but must be timestamp"):
        encode_frame(frame, "copy")


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Part:
    name: str
    share: float


@dataclass
class Spend:
    customer: str
    total: float
    count: int
    at: datetime.datetime
    parts: list[Part]
    size: Size = Size.SMALL
    how: Literal["card", "cash"] | None = "card"
    best: Part | None = None
    days: list[datetime.date] = field(default_factory=list)


SPEND: Topic[Spend] = Topic("spend", Spend)
BY_PYTHON: Topic[Spend] = Topic("spend", Spend, key=lambda spend: spend.customer)
COLUMNS = (
    "customer string, total double, count bigint, at timestamp, parts array<struct<name:string,share:double>>, "
    "size string, how string, best struct<name:string,share:double>, days array<date>"
)
FULL = ("ada", 1.5, 2, AT, [("x", 0.1)], "large", "cash", ("y", 1e300), [datetime.date(2026, 1, 2)])
BARE: tuple[Any, ...] = ('a"\n\\ž', -0.0, -(2**63), AT, [], "small", None, None, [])
SPENDS = [
    Spend("ada", 1.5, 2, AT, [Part("x", 0.1)], Size.LARGE, "cash", Part("y", 1e300), [datetime.date(2026, 1, 2)]),
    Spend('a"\n\\ž', -0.0, -(2**63), AT, [], Size.SMALL, None),
]


@pytest.mark.parametrize("topic", [SPEND, BY_PYTHON], ids=["JVM", "Python"])
def test_a_typed_topic_is_written_as_the_library_reads_it(topic: Topic[Spend], spark: SparkSession) -> None:
    frame = spark.createDataFrame([FULL, BARE], COLUMNS)
    written = encode_frame(frame, topic)
    plan = written._jdf.queryExecution().executedPlan().toString()
    assert ("MapInArrow" in plan) == (topic is BY_PYTHON)
    rows = written.collect()
    assert [topic.decode(bytes(row["value"])) for row in rows] == SPENDS
    expected = [None, None] if topic is SPEND else [spend.customer.encode() for spend in SPENDS]
    assert [None if row["key"] is None else bytes(row["key"]) for row in rows] == expected


@pytest.mark.parametrize("topic", [SPEND, BY_PYTHON], ids=["JVM", "Python"])
def test_shorter_numbers_other_orders_and_defaults_fit(topic: Topic[Spend], spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [([(0.5, "x")], AT, 2, 1.5, "ada")],
        "parts array<struct<share:float,name:string>>, at timestamp, count int, total float, customer string",
    )
    row = only(encode_frame(frame, topic, key="customer"))
    assert topic.decode(bytes(row["value"])) == Spend("ada", 1.5, 2, AT, [Part("x", 0.5)])
    assert bytes(row["key"]) == b"ada"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("customer", "cast(null as string)"),
        ("total", "double('NaN')"),
        ("total", "double('-Infinity')"),
        ("size", "'huge'"),
        ("how", "'credit'"),
        ("parts", "array(named_struct('name', cast(null as string), 'share', 1.0D))"),
        ("days", "array(cast(null as date))"),
    ],
    ids=["null", "nan", "infinity", "enum", "literal", "nested null", "null item"],
)
def test_what_nobody_could_read_is_not_written(name: str, wrong: str, spark: SparkSession) -> None:
    frame = spark.createDataFrame([FULL], COLUMNS).withColumn(name, F.expr(wrong))
    with pytest.raises(Exception, match=r"topic 'spend'"):
        encode_frame(frame, SPEND).collect()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("customer", None),
        ("total", float("nan")),
        ("total", float("-inf")),
        ("size", "huge"),
        ("how", "credit"),
        ("parts", [{"name": None, "share": 1.0}]),
        ("days", [None]),
    ],
)
def test_nor_is_it_by_python(name: str, wrong: Any) -> None:
    good: dict[str, Any] = {"customer": "ada", "total": 1.5, "count": 2, "at": AT, "parts": []}
    values = pa.array([{**good, name: wrong}])
    others = [pa.nulls(1) for _ in WRITTEN.names[2:]]
    rows = pa.RecordBatch.from_arrays([pa.array([None], pa.binary()), values, *others], WRITTEN.names)
    with pytest.raises(SerdeError, match=r"topic 'spend'"):
        Encoder(BY_PYTHON, makes_key=True).encode(rows)


@pytest.mark.parametrize("topic", [SPEND, BY_PYTHON], ids=["JVM", "Python"])
def test_a_row_of_nulls_is_a_record_without_a_value_and_needs_a_key(topic: Topic[Spend], spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,) * 9], COLUMNS)
    row = only(encode_frame(frame.withColumn("key", F.lit(b"gone")), topic))
    assert (bytes(row["key"]), row["value"]) == (b"gone", None)
    with pytest.raises(Exception, match="no key"):
        encode_frame(frame, topic).collect()


def test_everything_that_does_not_fit_is_told_at_once(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("1", 2.5, AT, [("x", "much")], "?")],
        "total string, count double, at timestamp, parts array<struct<name:string,share:string>>, more string",
    )
    with pytest.raises(SchemaMismatchError) as caught:
        encode_frame(frame, SPEND)
    for part in (
        "customer is missing (string)",
        "total is string, but must be double",
        "count is double, but must be bigint",
        "parts[].share is string, but must be double",
        "more is not a field of Spend",
    ):
        assert part in str(caught.value)
    with pytest.raises(SchemaMismatchError):
        check_columns(frame.schema, SPEND)


def test_what_is_known_about_a_record_may_stand_beside_its_fields(spark: SparkSession) -> None:
    frame = spark.createDataFrame([FULL], COLUMNS).crossJoin(record_frame(spark).drop("value"))
    row = only(encode_frame(frame, SPEND))
    assert bytes(row["key"]) == b"k"
    assert (row["topic"], row["partition"]) == (None, None)
    assert row["timestamp"] is not None
