"""What is told of a query that failed: the error itself, the line of the program, and the records it was about."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

import penstock as ps
from penstock.errors import PipelineError
from penstock.observe.pipelines import find_pipelines, pipeline_events
from penstock.spark import Folder
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.failures import LONGEST_TEXT, failure_of
from penstock.spark.run.restart import Restart
from penstock.spark.run.state_folder import StateFolder

Build = Callable[[DataFrame], DataFrame]
HERE = Path(__file__).name


def with_udf(frame: DataFrame) -> DataFrame:
    def price(pointer: int) -> int:
        raise ValueError(f"no price for\n{pointer}")

    return frame.select(F.udf(price, "long")("pointer").alias("price"))


def with_pandas_udf(frame: DataFrame) -> DataFrame:
    def price(pointers: pd.Series) -> pd.Series:
        return pd.Series({"tea": 2}).loc[["coffee"]]

    return frame.select(pandas_udf(price, "long")("pointer").alias("price"))  # type: ignore[call-overload]


def with_sql(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("cast('abc' || pointer as int) as number")


def with_columns(frame: DataFrame) -> DataFrame:
    return frame.select(F.concat(F.lit("abc"), F.col("pointer").cast("string")).cast("int").alias("number"))


def with_state(frame: DataFrame) -> DataFrame:
    def follow(key: Any, rows: Any, state: Any) -> Iterator[pd.DataFrame]:
        raise LookupError("no such account")
        yield

    keyed = frame.select(F.lit("k").alias("k"))
    return keyed.groupBy("k").applyInPandasWithState(follow, "n long", "n long", "append", "NoTimeout")


def refuse(batch: DataFrame, number: int) -> None:
    batch.count()
    raise RuntimeError(f"the till is closed at batch {number}")


@pytest.fixture
def orders(connection: ps.Connection) -> None:
    connection.create_topic("orders", 1)
    for number in range(3):
        connection.send("orders", str(number))
    connection.flush(timeout_s=30)


def fail(
    spark: SparkSession, url: str, build: Build, to: Any, attempts: int = 0, then: Callable[[], None] = lambda: None
) -> tuple[PipelineError, Path]:
    """Run a pipeline that must fail, as its functions are not guarded; its error, and its checkpoint folder."""
    quick = Restart(attempts=attempts, first_delay_s=0.01, max_delay_s=0.01)
    with Pipeline("usage", url, spark=spark, restart=quick, guard=False) as pipe:
        pipe.write(build(pipe.read("orders")), to, name="spend")
        then()
        with pytest.raises(PipelineError) as raised:
            pipe.run(once=True)
        folder = pipe.folder.local
        assert folder is not None
        return raised.value, folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("build", "to", "said"),
    [
        (with_udf, "out", rf"ValueError: no price for 0, at .*{HERE}:\d+ in price"),
        (with_pandas_udf, "out", rf"KeyError: .*coffee.*, at .*{HERE}:\d+ in price"),
        (with_sql, "out", r"NumberFormatException: \[CAST_INVALID_INPUT\] .*'abc0'.* SQLSTATE: 22018, at SQL \"cast\("),
        (with_columns, "out", rf"NumberFormatException: \[CAST_INVALID_INPUT\] .*, at .*{HERE}:\d+ in cast"),
        (with_state, "out", rf"LookupError: no such account, at .*{HERE}:\d+ in follow"),
        (lambda frame: frame, refuse, rf"RuntimeError: the till is closed at batch 0, at .*{HERE}:\d+ in refuse"),
        (lambda frame: frame, Folder("/proc/nothing"), r"FileNotFoundError: .*Cannot create directory '/proc/nothing'"),
    ],
    ids=["udf", "pandas udf", "SQL", "columns", "stateful function", "function of a batch", "sink that refuses"],
)
@pytest.mark.usefixtures("orders")
def test_a_failure_names_the_error_the_line_and_the_records(
    spark: SparkSession, log_url: str, build: Build, to: Any, said: str
) -> None:
    error, folder = fail(spark, log_url, build, to)
    expected = re.compile(said + r".*; while processing orders partition 0 offsets up to 2")
    assert expected.search(str(error)), error
    assert "\n" not in str(error)
    (query,) = find_pipelines(folder.parent)["usage"].queries
    assert query.error is not None
    assert expected.search(query.error), "in progress, which the console and `penstock pipelines` read"
    assert expected.search(pipeline_events(folder)[0].error or ""), "in its history"
    whole = Path(query.error_file or "").read_text()
    assert str(query.error_file) in str(error)
    assert "Traceback (most recent call last)" in whole
    assert "at org.apache.spark." in whole, "with the stack of Java"


@pytest.mark.usefixtures("orders")
def test_each_attempt_is_logged_with_its_cause_and_the_next_batch_with_its_offsets(
    spark: SparkSession, log_url: str, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def take(batch: DataFrame, number: int) -> None:
        if number == 0:
            connection.send("orders", "3").result(timeout=30)
        else:
            refuse(batch, number)

    with caplog.at_level(logging.WARNING, "penstock.spark"):
        with Pipeline("usage", log_url, spark=spark, restart=Restart(attempts=0)) as pipe:
            pipe.write(pipe.read("orders"), take, name="spend")
            pipe.run(once=True)
        error, _ = fail(spark, log_url, lambda frame: frame, take, attempts=1)
    told = "RuntimeError: the till is closed at batch 1"
    where = "while processing orders partition 0 offset 3"
    assert told in str(error)
    assert where in str(error)
    (line,) = [record.getMessage() for record in caplog.records if "attempt 1 of 1" in record.getMessage()]
    assert told in line
    assert where in line


@pytest.mark.usefixtures("orders")
def test_a_source_that_is_gone_is_told_without_the_frames_of_spark(
    spark: SparkSession, log_url: str, connection: ps.Connection
) -> None:
    error, _ = fail(spark, log_url, lambda frame: frame, "out", then=lambda: connection.delete_topic("orders"))
    assert "UnknownTopicError: topic 'orders'" in str(error)
    assert "SQLSTATE" not in str(error)
    assert "Streaming Query" not in str(error)


class PySparkLike(Exception):
    """An error with the stack of a JVM, as PySpark makes them."""

    __module__ = "pyspark.errors.exceptions.captured"

    def __init__(self, text: str, stack: str) -> None:
        super().__init__(text)
        self._stackTrace = stack


OUT_OF_MEMORY = """org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] \
terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 3.0 (TID 3) (127.0.0.1 executor driver): java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: usage.spend [id = 1, runId = 2]
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.run(StreamExecution.scala:1)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most \
recent failure: Lost task 0.0 in stage 3.0 (TID 3) (127.0.0.1 executor driver): java.lang.OutOfMemoryError: Java heap \
space
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2)
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
"""

UNREACHABLE = """org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE] Cannot load the state store. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:1)
Caused by: java.util.concurrent.ExecutionException: java.net.ConnectException: refused
\tat java.base/java.util.concurrent.FutureTask.report(FutureTask.java:122)
Caused by: java.net.ConnectException: Connection refused: 10.0.0.7:9000
\tat java.base/sun.nio.ch.Net.connect(Net.java:1)
"""


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (OUT_OF_MEMORY, "OutOfMemoryError: Java heap space"),
        (
            UNREACHABLE,
            "SparkException: [CANNOT_LOAD_STATE_STORE] Cannot load the state store. SQLSTATE: 58030; caused by "
            "ConnectException: Connection refused: 10.0.0.7:9000",
        ),
    ],
    ids=["of a task", "with a cause"],
)
def test_an_error_of_java_is_told_by_what_it_is_about(stack: str, text: str) -> None:
    assert failure_of(PySparkLike(stack.partition("\n\tat ")[0], stack)).text.startswith(text)


def test_a_message_that_never_ends_is_cut_and_its_place_is_not() -> None:
    try:
        raise ValueError("\x1b[2J" + "x" * 100_000)
    except ValueError as error:
        text = failure_of(error).text
    assert len(text) <= LONGEST_TEXT + 50
    assert HERE in text
    assert "\x1b" not in text


def test_an_error_whose_text_cannot_be_kept_is_still_told(
    spark: SparkSession, log_url: str, orders: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = StateFolder.write

    def full(folder: StateFolder, name: str, text: str) -> None:
        if name == "error.txt":
            raise OSError("no space left on device")
        write(folder, name, text)

    monkeypatch.setattr(StateFolder, "write", full)
    error, _ = fail(spark, log_url, lambda frame: frame, refuse)
    assert "the till is closed" in str(error)
    assert "no space left on device" in caplog.text
    assert "Traceback" in caplog.text
