"""Which queries can run in real-time mode, as Spark's own planner says, and what users are told about the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock
from penstock import Connection
from penstock.errors import ConfigError
from penstock.model import Guarantee
from penstock.spark import TopicTarget
from penstock.spark.reading import read_stream
from penstock.spark.realtime import mode as realtime
from penstock.spark.realtime.planning import planned
from penstock.spark.run.triggers import RealTime
from tests.spark.realtime.conftest import Reading

Making = Callable[[Reading, SparkSession], DataFrame]


def text(read: Reading, topic: str = "orders") -> DataFrame:
    return read(topic).withColumn("text", F.col("value").cast("string")).withColumn("name", F.col("key").cast("string"))


def prices(spark: SparkSession) -> DataFrame:
    return spark.sql("select * from values ('apple', 3), ('pear', 5) as prices(name, price)")


ALLOWED: Final[dict[str, tuple[Making, tuple[int, ...]]]] = {
    "select and where": (lambda read, spark: text(read).where("text <> ''").select("text"), ()),
    "explode": (lambda read, spark: text(read).select(F.explode(F.split("text", ",")).alias("part")), ()),
    "union of two topics": (lambda read, spark: text(read).union(text(read, "returns")), ()),
    "union of two readings of a topic": (lambda read, spark: text(read).union(text(read)), ()),
    "broadcast join": (lambda read, spark: text(read).join(F.broadcast(prices(spark)), "name"), ()),
    "left broadcast join": (lambda read, spark: text(read).join(F.broadcast(prices(spark)), "name", "left"), ()),
    "count": (lambda read, spark: text(read).groupBy("name").count(), (1,)),
    "sum, min, max, avg": (
        lambda read, spark: (
            text(read).groupBy("name").agg(F.sum("pointer"), F.min("text"), F.max("text"), F.avg("pointer"))
        ),
        (1,),
    ),
    "window": (
        lambda read, spark: (
            text(read)
            .withWatermark("timestamp", "1 minute")
            .groupBy(F.window("timestamp", "10 seconds"), "name")
            .count()
        ),
        (1,),
    ),
    "dropDuplicates": (lambda read, spark: text(read).dropDuplicates(["text"]), (1,)),
    "dropDuplicates, then count": (
        lambda read, spark: text(read).dropDuplicates(["name", "text"]).groupBy("name").count(),
        (1, 1),
    ),
    "repartition": (lambda read, spark: text(read).repartition(2, "name"), (2,)),
}

REFUSED: Final[dict[str, tuple[Making, str]]] = {
    "udf": (lambda read, spark: text(read).select(F.udf(str.upper)("text").alias("text")), "a function in Python"),
    "mapInArrow": (
        lambda read, spark: text(read).select("text").mapInArrow(lambda batches: batches, "text string"),
        "Python code over rows",
    ),
    "join that is not broadcast": (
        lambda read, spark: text(read).join(prices(spark).hint("merge"), "name"),
        "use broadcast(other)",
    ),
    "join without equality": (
        lambda read, spark: text(read).join(F.broadcast(prices(spark)), F.expr("price < pointer")),
        "a join without an equality",
    ),
    "join of two streams": (
        lambda read, spark: text(read).select("name").join(text(read, "returns").select("name"), "name"),
        "a join of two streams",
    ),
    "dropDuplicatesWithinWatermark": (
        lambda read, spark: text(read).withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["text"]),
        "use dropDuplicates",
    ),
    "session windows": (
        lambda read, spark: (
            text(read)
            .withWatermark("timestamp", "1 minute")
            .groupBy(F.session_window("timestamp", "5 seconds"))
            .count()
        ),
        "session window",
    ),
    "repartitionByRange": (lambda read, spark: text(read).repartitionByRange(2, "name"), "range partitioning"),
    "limit": (lambda read, spark: text(read).limit(3), "Limits are not supported"),
    "one frame twice": (lambda read, spark: (once := text(read)).union(once), "read the topic twice"),
    "aggregation before a union": (
        lambda read, spark: text(read).groupBy("name").count().union(text(read, "returns").groupBy("name").count()),
        "before a union",
    ),
    "another source": (lambda read, spark: spark.readStream.format("rate").load(), "the source rate is not supported"),
}


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A log that the tests here share, as none of them writes to it."""
    url = f"log:{tmp_path_factory.mktemp('shared') / 'log'}"
    with penstock.connect(url) as connection:
        connection.create_topic("orders", 2)
        connection.create_topic("returns", 1)
        yield url


@pytest.fixture
def log_url(shared_log: str) -> str:
    return shared_log


@pytest.mark.parametrize("case", ALLOWED)
def test_what_runs_in_real_time_and_how_many_tasks_it_takes(case: str, read: Reading, real_time: SparkSession) -> None:
    make, shuffles = ALLOWED[case]
    frame = make(read, real_time)
    found = planned(frame)
    assert found.reasons == ()
    assert found.shuffles == shuffles
    of_topics = {"union of two topics": 3, "union of two readings of a topic": 4}
    assert found.source_tasks == of_topics.get(case, 2)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_is_refused_in_words(case: str, read: Reading, real_time: SparkSession) -> None:
    make, reason = REFUSED[case]
    found = planned(make(read, real_time))
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_a_topic_that_is_read_by_our_own_source_is_refused(real_time: SparkSession, log_url: str) -> None:
    frame = read_stream(real_time, log_url, "orders", engine="python")
    (reason,) = planned(frame).reasons
    assert 'engine="native"' in reason
    assert "orders" in reason


def test_a_limit_of_records_per_batch_is_refused(real_time: SparkSession, log_url: str) -> None:
    frame = read_stream(real_time, log_url, "orders", engine="native", max_records_per_batch=10)
    (reason,) = planned(frame).reasons
    assert "max_records_per_batch" in reason


def test_results_that_are_to_be_exactly_once_are_refused(read: Reading, log_url: str) -> None:
    target = TopicTarget(log_url, "results", guarantee=Guarantee.EXACTLY_ONCE)
    assert "at least once" in realtime.check(text(read).select("text"), target)[0]


def test_a_query_that_cannot_is_left_to_batches_with_one_message(
    read: Reading, log_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = TopicTarget(log_url, "results", guarantee=Guarantee.AT_LEAST_ONCE)
    frame = text(read).limit(3).select("text")
    with caplog.at_level("WARNING", "penstock.spark"):
        assert realtime.plan(frame, target, RealTime("1 second"), "query 'q'") is None
    (message,) = [record.getMessage() for record in caplog.records if record.name == "penstock.spark"]
    assert "query 'q' runs in batches" in message
    assert "Limits" in message


def test_a_batch_that_is_too_short_is_refused_with_what_it_means(
    read: Reading, log_url: str, real_time: SparkSession
) -> None:
    target = TopicTarget(log_url, "results", guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(ConfigError, match="interval of checkpoints"):
        realtime.plan(text(read).select("text"), target, RealTime("10 milliseconds"), "query 'q'")


def test_batches_are_as_long_as_spark_wants_them_where_nobody_has_said_otherwise(
    read: Reading, log_url: str, real_time: SparkSession
) -> None:
    real_time.conf.unset("spark.sql.streaming.realTimeMode.minBatchDuration")
    target = TopicTarget(log_url, "results", guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(ConfigError, match="5000 ms"):
        realtime.plan(text(read).select("text"), target, RealTime("4 seconds"), "query 'q'")
    assert realtime.plan(text(read).select("text"), target, RealTime(), "query 'q'") is not None


def test_planning_writes_nothing(read: Reading, connection: Connection) -> None:
    topics, files = connection.topics(), sorted(Path.cwd().iterdir())
    planned(text(read).groupBy("name").count())
    assert connection.topics() == topics
    assert sorted(Path.cwd().iterdir()) == files
