"""Rows for which Spark's own expressions fail: a cast, a division, a condition, a value that does not fit a topic."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions

import penstock as ps
from penstock.errors import PipelineError
from penstock.spark import Restart, stateful
from penstock.spark.errors.searched_plans import search
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.restart import is_transient
from penstock.spark.state.context import KeyContext
from tests.spark.errors.shops import COUNT, ORDERS, Order, cents_of, letters, values

TICKS = ps.Topic("ticks", Order)


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Parcel:
    customer: str
    size: Size
    cents: float


def test_rows_that_built_in_expressions_refuse_are_letters_and_the_rest_goes_on(
    shop: Pipeline, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    text = F.when(F.col("cents") == 12, "twelve").otherwise(F.col("cents").cast("string"))
    plus = F.udf(lambda number: number + 0, "int")
    orders = (
        shop.read(ORDERS)
        .withColumn("text", text)
        .withColumns({"number": F.expr("cast(text as int)"), "next": F.expr("cast(text as int) + 1")})
        .where("120 % (number - 13) >= 0")
        .withColumn("boxed", F.struct(F.expr("120 % (number - 15)").alias("rest")))
        .withColumn("rest", F.col("boxed.rest"))
        .transform(shop.expect("small", "60 / (number - 14) < 1000", otherwise="drop"))
        .select("customer", "rest", plus(F.expr("number + 2147483632")).alias("sum"), "number", "next")
        .select("customer", "rest", F.expr("2147483632 + number").alias("most"), "number", "next")
        .where("number < 50")
    )
    shop.write(orders, "checked")
    with caplog.at_level(logging.WARNING):
        shop.run(once=True)
    assert sorted(row["number"] for row in values(connection, "checked")) == [*range(12)]
    found = {cents_of(letter): letter for letter in letters(connection)}
    assert sorted(found) == [*range(12, COUNT)]
    assert found[12].error == "ExpressionFailed: CAST(text AS INT) fails for this row"
    assert found[12].error_kind == "ExpressionFailed"
    assert "120 % (number - 13)" in found[13].error
    assert "120 % (number - 15)" in found[15].error
    assert found[16].error == "ExpressionFailed: (number + 2147483632) fails for this row"
    assert shop.progress()["checked"].restarts == 0
    assert "CAST_INVALID_INPUT" in caplog.text or "DIVIDE_BY_ZERO" in caplog.text or "REMAINDER" in caplog.text


def test_the_checkpoint_of_a_query_with_state_stays_valid_when_rows_are_searched_for(
    shop: Pipeline, connection: ps.Connection
) -> None:
    def counted(customer: str, orders: Iterator[Row], ctx: KeyContext) -> list[tuple[str, int]]:
        ctx.state.put(ctx.state.get(0) + len(list(orders)))
        return [(customer, ctx.state.get())]

    orders = shop.read(ORDERS, max_records_per_batch=20).selectExpr("customer", "100 div (cents - 33) as share")
    shop.write(orders.groupBy("customer").agg(F.sum("share").alias("total")), "sums", key="customer", mode="update")
    counts = stateful(orders, "customer", counted, "customer string, total long", state=int, mode="update")
    shop.write(counts, "counts", key="customer")
    shop.run(once=True)
    wanted = {f"c{kind}": [n for n in range(COUNT) if n % 7 == kind and n != 33] for kind in range(7)}
    sums = {row["customer"]: row["total"] for row in values(connection, "sums")}
    assert sums == {name: sum(int(100 / (n - 33)) for n in numbers) for name, numbers in wanted.items()}
    counted_rows = {row["customer"]: row["total"] for row in values(connection, "counts")}
    assert counted_rows == {name: len(numbers) for name, numbers in wanted.items()}
    assert [cents_of(letter) for letter in letters(connection)] == [33]


def test_windows_and_late_rows_stay_what_they_are_when_rows_are_searched_for(
    shop: Pipeline, connection: ps.Connection
) -> None:
    text = F.when(F.col("cents") == 5, "soon").otherwise(
        F.date_format(F.timestamp_seconds(F.when(F.col("cents") == 50, 1).otherwise(F.col("cents") * 60)), "HH:mm:ss")
    )
    connection.create_topic("ticks", 1)  # in order, so that only one row is late
    for number in range(COUNT):
        connection.send(TICKS, Order("ann", number))
    connection.flush(timeout_s=30)
    orders = shop.read(TICKS, max_records_per_batch=20).select(text.alias("at"), "cents")
    times = orders.withColumn("at", F.expr("cast('2026-01-01 ' || at as timestamp)"))
    on_time = shop.on_time(times, "at", grace="30 seconds", window="10 minutes", late="late")
    counted = on_time.groupBy(F.window("at", "10 minutes")).count()
    shop.write(counted.select(F.col("window.start").alias("start"), "count"), "counts", mode="append")
    shop.run(once=True)
    found = {row["start"][11:16]: row["count"] for row in values(connection, "counts")}
    assert found == {"00:00": 9, "00:10": 10, "00:20": 10, "00:30": 10, "00:40": 10}
    assert [row["cents"] for row in values(connection, "late")] == [50]
    with contextlib.closing(ps.open_dead_letters("ticks.dlq", connection)) as opened:
        assert [cents_of(letter) for letter in opened.browse(ps.DeadLetterFilter())] == [5]


def test_an_expression_of_an_aggregation_is_named_and_not_tried_again(shop: Pipeline) -> None:
    orders = shop.read(ORDERS).groupBy("customer").agg(F.expr("sum(1 div (cents - 3))").alias("total"))
    shop.write(orders, "sums", key="customer", mode="update")
    with pytest.raises(PipelineError, match=r"DIVIDE_BY_ZERO.*orders partition \d offsets") as failed:
        shop.run(once=True)
    assert "attempts" not in str(failed.value)
    assert shop.progress()["sums"].restarts == 0


def test_a_row_that_does_not_fit_a_typed_topic_is_a_letter_though_spark_encodes_it(
    shop: Pipeline, connection: ps.Connection
) -> None:
    orders = shop.read(ORDERS)
    size = F.when(orders.cents % 2 == 0, "small").when(orders.cents == 7, "huge").otherwise("large")
    cents = F.when(orders.cents == 9, F.lit(float("nan"))).otherwise(orders.cents.cast("double"))
    customer = F.when(orders.cents != 11, orders.customer)
    parcels = orders.select("topic", "partition", "pointer", customer.alias("customer"), size.alias("size"), cents)
    typed = ps.Topic("parcels", Parcel)
    shop.write(parcels.withColumnRenamed(parcels.columns[-1], "cents").drop("topic", "partition", "pointer"), typed)
    shop.run(once=True)
    assert sorted(row["cents"] for row in values(connection, "parcels")) == [
        number for number in range(COUNT) if number not in (7, 9, 11)
    ]
    assert len(letters(connection)) == 3
    assert {letter.error_kind for letter in letters(connection)} == {"SchemaMismatchError"}
    assert shop.progress()["parcels"].bad_rows == {"encoder of topic parcels": 3}


def test_without_letters_a_row_that_does_not_fit_stops_the_query_at_once(shop: Pipeline, log_url: str) -> None:
    with Pipeline("none", log_url, spark=shop.spark, restart=Restart(attempts=2)) as none:
        orders = none.read(ORDERS, dead_letters=None)
        parcels = orders.select("customer", F.lit("huge").alias("size"), orders.cents.cast("double").alias("cents"))
        none.write(parcels, ps.Topic("strict", Parcel))
        with pytest.raises(PipelineError, match="a row is not a Parcel: check its nulls") as failed:
            none.run(once=True)
        assert "attempts" not in str(failed.value)


def test_values_that_fail_are_told_from_nulls(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("1",), (None,)], "a string").selectExpr("a", "cast(a as int) as n")
    searched = search(frame, "test")
    assert searched is not None
    assert searched.schema == frame.schema
    assert searched.collect() == frame.collect()
    assert search(spark.range(3).select(F.col("id").alias("b")), "test") is None, "no expression can fail"


def test_what_a_condition_keeps_from_failing_is_not_evaluated(spark: SparkSession) -> None:
    def box(numbers: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"v": numbers})

    pandas_udf: Any = functions.pandas_udf
    boxed = pandas_udf(box, "v int")  # with a struct, it cannot be guarded
    frame = spark.createDataFrame([(0,), (5,)], "x int")
    shares = frame.select(F.when(F.col("x") != 0, F.expr("10 div x") + boxed("x")["v"]).alias("share"))
    assert search(shares, "test") is None
    argument = search(frame.select(F.when(F.col("x") != 0, boxed(F.expr("x + 1"))["v"]).alias("v")), "test")
    assert argument is not None
    assert argument.collect() == [Row(v=None), Row(v=6)]


def test_errors_of_ansi_mode_are_final(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as failed:
        spark.createDataFrame([("x",)], "a string").selectExpr("cast(a as int)").collect()
    assert not is_transient(failed.value)
    with pytest.raises(Exception, match="mine") as failed:
        spark.range(1).select(F.raise_error(F.lit("mine"))).collect()
    assert is_transient(failed.value)
