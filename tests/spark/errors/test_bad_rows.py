"""Pipelines with rows that fail: the rest goes on, and the failed ones are in the dead letters with their records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions

import penstock as ps
from penstock.dead_letters import redrive
from penstock.errors import BadRowsError, ConfigError, DeliveryError
from penstock.observe.pipelines import find_pipelines
from penstock.spark import Restart, SqlTable, guarded
from penstock.spark.pipeline import Pipeline
from penstock.spark.sink.publishing import Mark, Publisher
from penstock.spark.sink.topic import TopicTarget
from penstock.streams.kafka.producing.producer import Row
from tests.spark.errors.shops import COUNT, ORDERS, cents_of, letters, values


@dataclass
class Checked:
    customer: str
    cents: int


def failing_at(wrong: int, error: Callable[[str], Exception]) -> Callable[[int], int]:
    def checked(cents: int) -> int:
        if cents == wrong:
            raise error(f"no {cents}")
        return cents

    return checked


def test_rows_that_fail_in_functions_of_every_kind_are_letters_and_the_rest_goes_on(
    shop: Pipeline, connection: ps.Connection
) -> None:
    def by_arrow(cents: pa.Array) -> pa.Array:
        if 12 in cents.to_pylist():
            raise KeyError("twelve")
        return cents

    def by_pandas(cents: pd.Series) -> pd.Series:
        if (cents == 13).any():
            raise ValueError("thirteen")
        return cents

    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 14 in batch.column("cents").to_pylist():
                raise RuntimeError("fourteen")
            yield batch

    def key_of(checked: Checked) -> str:
        if checked.cents == 16:
            raise LookupError("sixteen")
        return checked.customer

    arrow_udf: Any = functions.arrow_udf
    pandas_udf: Any = functions.pandas_udf
    plain = F.udf(failing_at(10, ValueError), "long")
    filtering = F.udf(failing_at(11, OverflowError), "long", useArrow=False)
    orders = shop.read(ORDERS)
    checked = (
        orders.withColumn("cents", plain(plain("cents")))
        .where(filtering("cents") >= 0)
        .select("*", arrow_udf(by_arrow, "long")("cents").alias("a"))
        .withColumn("p", pandas_udf(by_pandas, "long")(F.col("a")))
        .where("a = p")
        .drop("a", "p", "headers", "timestamp", "timestamp_type", "key")
    )
    schema = "customer string, cents long, topic string, partition int, pointer long"
    through = checked.select("customer", "cents", "topic", "partition", "pointer").mapInArrow(guarded(mapped), schema)
    shop.write(through, ps.Topic("checked", Checked, key=key_of))
    shop.run(once=True)
    assert sorted(row["cents"] for row in values(connection, "checked")) == sorted(
        {*range(COUNT)} - {*range(10, 15), 16}
    )
    found = letters(connection)
    assert {cents_of(letter): letter.error for letter in found} == {
        10: "ValueError: no 10",
        11: "OverflowError: no 11",
        12: "KeyError: 'twelve'",
        13: "ValueError: thirteen",
        14: "RuntimeError: fourteen",
        16: "SerdeError: topic 'checked': the key function failed for this Checked: LookupError: sixteen",
    }
    assert all(letter.record.topic == "orders" and "Traceback" in letter.traceback for letter in found)
    assert shop.progress()["checked"].bad_rows == {
        "encoder of topic checked": 1,
        "function by_arrow": 1,
        "function by_pandas": 1,
        "function checked": 2,
        "function mapped": 1,
    }


def test_functions_of_keys_aggregates_explode_and_joins_are_guarded_where_they_are_called(
    shop: Pipeline, connection: ps.Connection
) -> None:
    orders = shop.read(ORDERS).withWatermark("timestamp", "1 hour")
    key = F.udf(failing_at(10, ValueError), "long")
    amount = F.udf(failing_at(11, OverflowError), "long")
    several: Any = F.udf(lambda cents: [cents] if cents != 12 else [][cents], "array<long>")
    each = orders.select(
        "customer", "timestamp", "topic", "partition", "pointer", F.explode(several("cents")).alias("c")
    )
    totals = each.groupBy(key("c") % 2, key("c").alias("cents")).agg(F.sum(amount("c") + 0).alias("sum"), F.count("*"))
    shop.write(totals.select("cents", "sum"), "totals", key="cents", mode="update")
    known = shop.spark.createDataFrame([(number, f"n{number}") for number in range(COUNT)], "number long, name string")
    joined = F.udf(failing_at(13, KeyError), "long")
    named = orders.join(known, joined("cents") == F.udf(failing_at(14, KeyError), "long")("number"))
    shop.write(named.select("cents", "name"), "named")
    shop.run(once=True)
    expected = {*range(COUNT)} - {10, 11, 12}
    assert {row["cents"]: row["sum"] for row in values(connection, "totals")} == {each: each for each in expected}
    expected = {*range(COUNT)} - {13, 14}
    assert {row["cents"]: row["name"] for row in values(connection, "named")} == {each: f"n{each}" for each in expected}
    found = {letter.error: letter for letter in letters(connection)}
    assert {cents_of(found[error]) for error in ("ValueError: no 10", "OverflowError: no 11", "KeyError: 'no 13'")} == {
        *(10, 11, 13)
    }
    assert cents_of(found["IndexError: list index out of range"]) == 12
    assert shop.progress()["totals"].bad_rows == {"function checked": 2, "function <lambda>": 1}


def test_a_redriven_row_passes_through_the_pipeline_again(shop: Pipeline, connection: ps.Connection) -> None:
    def program(wrong: int) -> Pipeline:
        pipe = Pipeline("shop", shop.url, spark=shop.spark)
        frame = pipe.read(ORDERS).withColumn("cents", F.udf(failing_at(wrong, ValueError), "long")("cents"))
        pipe.write(frame.select("customer", "cents"), "out")
        return pipe

    with program(10) as failing:
        failing.run(once=True)
    assert len(values(connection, "out")) == COUNT - 1
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as opened:
        assert redrive(opened, connection.backend, ps.DeadLetterFilter(group="shop")).redriven == 1
    with program(10) as failing:
        failing.run(once=True)
    (letter,) = letters(connection)
    assert (letter.redrives, letter.error) == (1, "ValueError: no 10"), "it failed again, under the same id"
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as opened:
        assert redrive(opened, connection.backend, ps.DeadLetterFilter(group="shop")).redriven == 1
    with program(-1) as mended:
        mended.run(once=True)
    assert sorted(row["cents"] for row in values(connection, "out")) == list(range(COUNT))
    assert letters(connection) == []


def test_expectations_drop_rows_make_letters_or_stop_the_query(
    shop: Pipeline, connection: ps.Connection, tmp_path: Path
) -> None:
    orders = shop.read(ORDERS).transform(shop.expect("small", "cents < 50", otherwise="drop"))
    orders = orders.transform(shop.expect("positive", "nullif(cents, 7) > 2"))
    table = SqlTable(f"sqlite:{tmp_path / 'shop.db'}", "orders")
    shop.write(orders.select("customer", "cents"), "good", table)
    shop.run(once=True)
    assert sorted(row["cents"] for row in values(connection, "good")) == sorted({*range(3, 50)} - {7})
    assert {cents_of(letter): letter.error for letter in letters(connection)} == dict.fromkeys(
        (0, 1, 2, 7), "ExpectationNotMet: expectation positive: nullif(cents, 7) > 2 is not true"
    )
    progress = shop.progress()["good"]
    assert (progress.rows_read, progress.rows_bad, progress.rows_dropped) == (COUNT, 4, 10)
    assert progress.bad_rows == {"expectation positive": 4, "expectation small": 10}
    (query,) = find_pipelines(Path(shop.folder.path).parent)["shop"].queries
    assert (query.rows_bad, query.rows_dropped, query.bad_rows) == (4, 10, progress.bad_rows)

    with Pipeline("strict", shop.url, spark=shop.spark) as strict:
        rows = strict.read("orders").transform(strict.expect("known", "topic = 'payments'", otherwise="fail"))
        strict.write(rows, "payments")
        with pytest.raises(ConfigError, match="expectation odd: 'cents' is"):
            strict.read(ORDERS).transform(strict.expect("odd", "cents"))
        with pytest.raises(
            Exception, match=r"BadRowsError: expectation known: topic = 'payments' is not true for orders"
        ):
            strict.run(once=True)
        assert values(connection, "payments") == []
        assert letters(connection, "strict") == []


def test_too_many_bad_rows_stop_the_query_and_nothing_of_the_batch_is_written(
    shop: Pipeline, connection: ps.Connection
) -> None:
    def run(limit: float) -> int:
        with Pipeline(f"limited-{limit}", shop.url, spark=shop.spark, max_bad_rows=limit) as pipe:
            rows: DataFrame = pipe.read("orders").transform(pipe.expect("even", "pointer % 10 <> 0"))
            pipe.write(rows.select("value"), f"out-{limit}")
            try:
                pipe.run(once=True)
            finally:
                written = len(values(connection, f"out-{limit}"))
                assert (written == 0) == (letters(connection, pipe.name) == [])
            return written

    bad = sum(-(-connection.open_topic("orders").span(partition)[1] // 10) for partition in (0, 1))
    assert run(bad) == COUNT - bad
    with pytest.raises(BadRowsError, match=rf"{bad} rows of batch 0 are bad, more than max_bad_rows=0.05 of 60 rows"):
        run(0.05)
    with pytest.raises(Exception, match=r"most of them fail expectation even|more than 2 rows of one task are bad"):
        run(2)


def test_a_share_of_bad_rows_is_one_of_the_rows_of_the_batch(shop: Pipeline, connection: ps.Connection) -> None:
    def run(limit: float) -> None:
        with Pipeline(f"share-{limit}", shop.url, spark=shop.spark, max_bad_rows=limit) as pipe:
            few = pipe.read(ORDERS).where("cents < 12").withColumn("cents", F.udf(failing_at(10, ValueError))("cents"))
            pipe.write(few.select("customer", "cents"), f"few-{limit}")
            pipe.run(once=True)

    run(0.02)  # 1 of 60; it is 1 of the 12 rows that the function saw
    assert len(values(connection, "few-0.02")) == 11
    with pytest.raises(BadRowsError, match=r"more than max_bad_rows=0\.01 of 60 rows allows"):
        run(0.01)


def test_bad_rows_of_the_last_batch_are_told_beside_those_of_the_run(
    log_url: str, connection: ps.Connection, shop: Pipeline
) -> None:
    connection.create_topic("numbers", 1)
    with Pipeline("batches", log_url, spark=shop.spark) as pipe:
        rows = pipe.read("numbers", max_records_per_batch=4)
        rows = rows.transform(pipe.expect("even", "pointer % 2 = 0")).transform(
            pipe.expect("small", "pointer < 5", otherwise="drop")
        )
        pipe.write(rows.select("value"), "out")
        for number in range(10):
            connection.send("numbers", str(number).encode())
        connection.flush(timeout_s=30)
        pipe.run(once=True)
        found = pipe.progress()["out"]
        assert (found.rows_bad, found.rows_dropped, found.bad_rows) == (
            5,
            2,
            {"expectation even": 5, "expectation small": 2},
        )
        assert (found.batch_rows_bad, found.batch_rows_dropped) == (1, 1)
        assert found.batch_bad_rows == {"expectation even": 1, "expectation small": 1}
        (query,) = find_pipelines(Path(pipe.folder.path).parent)["batches"].queries
        assert (query.batch_rows_bad, query.batch_rows_dropped, query.batch_bad_rows) == (1, 1, found.batch_bad_rows)


def test_letters_are_committed_in_the_transaction_of_their_batch(
    shop: Pipeline, connection: ps.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Publisher._transact
    rows_of_batch: list[list[str]] = []

    def failing(self: Publisher, mark: Mark, rows: Callable[[], Iterable[Row]]) -> None:
        rows_of_batch.append([row[0] for row in rows()])
        if rows_of_batch[-1]:
            raise DeliveryError("not today", retriable=False)
        real(self, mark, rows)

    monkeypatch.setattr(Publisher, "_transact", failing)
    frame = shop.read(ORDERS).withColumn("cents", F.udf(failing_at(10, ValueError), "long")("cents"))
    shop.write(frame.select("customer", "cents"), "out", restart=Restart(attempts=0))
    with pytest.raises(Exception, match="not today"):
        shop.run(once=True)
    assert letters(connection) == []
    assert sorted(rows_of_batch[-1]) == ["orders.dlq", *["out"] * (COUNT - 1)]
    monkeypatch.undo()
    shop.run(once=True)
    assert [cents_of(letter) for letter in letters(connection)] == [10]
    assert len(values(connection, "out")) == COUNT - 1


def test_a_batch_of_bad_rows_only_still_has_letters(shop: Pipeline, connection: ps.Connection) -> None:
    def fails(cents: int) -> int:
        raise ValueError(f"no {cents}")

    shop.write(shop.read(ORDERS).select(F.udf(fails, "long")("cents").alias("none")), "out")
    shop.run(once=True)
    assert values(connection, "out") == []
    assert sorted(map(cents_of, letters(connection))) == list(range(COUNT))


def test_letters_of_a_batch_that_tasks_publish_are_committed_with_its_mark(
    shop: Pipeline, connection: ps.Connection
) -> None:
    frame = shop.read(ORDERS).withColumn("cents", F.udf(failing_at(10, ValueError), "long")("cents"))
    large = frame.select("cents", F.repeat(F.lit("x"), 20_000).alias("padding"))
    shop.write(large, TopicTarget(shop.url, "large", parallel_above_bytes=1))
    shop.run(once=True)
    assert sorted(row["cents"] for row in values(connection, "large")) == sorted({*range(COUNT)} - {10})
    assert [cents_of(letter) for letter in letters(connection)] == [10]
