"""Queries in real-time mode, on the embedded log and on Apache Kafka: results while the batch still runs, restarts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock
from penstock import Connection
from penstock.errors import CheckpointMismatchError, PipelineError
from tests.servers import ApacheKafka
from tests.spark.realtime.conftest import Reading, Starting
from tests.spark.realtime.watching import values, wait_for_batches, wait_for_values

LONG = "5 minutes"
"""A batch that does not end before the test does: what is seen was not held back to its end."""


@pytest.fixture(params=["log", "kafka"])
def stream(request: pytest.FixtureRequest, tmp_path: Path, log_url: str) -> Iterator[Connection]:
    """A connection to an embedded log, and to an Apache Kafka."""
    if request.param == "log":
        with penstock.connect(log_url) as connection:
            yield connection
        return
    with ApacheKafka(tmp_path / "kafka") as kafka, penstock.connect(f"kafka://{kafka.bootstrap}") as connection:
        yield connection


def amounts(frame: DataFrame) -> DataFrame:
    """Records of JSON as rows of a card and an amount."""
    parsed = F.from_json(F.col("value").cast("string"), "card string, amount double")
    return frame.select(parsed.alias("parsed")).select("parsed.*")


def send(connection: Connection, *rows: tuple[str, float]) -> None:
    for card, amount in rows:
        connection.send("payments", json.dumps({"card": card, "amount": amount}).encode(), key=card.encode())
    connection.flush()


def test_results_come_while_the_batch_runs(stream: Connection, read: Reading, start: Starting) -> None:
    stream.create_topic("payments", 1)
    large = amounts(read("payments", url=stream.url)).where("amount > 100")
    query = start(large, "large", key="card", url=stream.url, batch=LONG)
    send(stream, ("a", 50.0), ("b", 150.0))
    assert wait_for_values(stream, "large", query, bool) == [{"card": "b", "amount": 150.0}]
    send(stream, ("a", 250.0))
    found = wait_for_values(stream, "large", query, lambda found: len(found) == 2)
    assert found[1] == {"card": "a", "amount": 250.0}
    assert [record.key for record in stream.read("large")] == [b"b", b"a"]
    assert query.lastProgress is None, "no batch has ended"


def test_sums_follow_each_record(connection: Connection, read: Reading, start: Starting) -> None:
    connection.create_topic("payments", 1)
    sums = amounts(read("payments")).groupBy("card").agg(F.sum("amount").alias("spent"), F.count("*").alias("times"))
    query = start(sums, "spent", key="card", batch=LONG)
    send(connection, ("a", 1.0), ("b", 5.0), ("a", 2.0))
    found = wait_for_values(connection, "spent", query, lambda found: len(found) == 3)
    assert sorted(found, key=str) == sorted(
        [
            {"card": "a", "spent": 1.0, "times": 1},
            {"card": "b", "spent": 5.0, "times": 1},
            {"card": "a", "spent": 3.0, "times": 2},
        ],
        key=str,
    )


def test_a_restart_keeps_counts_and_loses_nothing(connection: Connection, read: Reading, start: Starting) -> None:
    connection.create_topic("payments", 1)

    def counts() -> DataFrame:
        return amounts(read("payments")).groupBy("card").agg(F.count("*").alias("times"))

    query = start(counts(), "times", key="card", name="counts")
    send(connection, *[("a", 1.0)] * 10)
    wait_for_values(connection, "times", query, lambda found: {"card": "a", "times": 10} in found)
    wait_for_batches(query, (query.lastProgress.batchId if query.lastProgress is not None else -1) + 3)
    query.stop()
    send(connection, *[("a", 1.0)] * 5)
    again = start(counts(), "times", key="card", name="counts")
    found = wait_for_values(connection, "times", again, lambda found: {"card": "a", "times": 15} in found)
    told = Counter(each["times"] for each in found)
    assert set(told) == set(range(1, 16)), "each count was told at least once, and none that is not right"


def test_results_of_a_batch_that_did_not_end_are_written_again(
    connection: Connection, read: Reading, start: Starting
) -> None:
    connection.create_topic("payments", 1)
    send(connection, ("a", 1.0))
    query = start(amounts(read("payments")), "copy", name="copying", batch=LONG)
    wait_for_values(connection, "copy", query, bool)
    query.stop()
    again = start(amounts(read("payments")), "copy", name="copying", batch=LONG)
    found = wait_for_values(connection, "copy", again, lambda found: len(found) == 2)
    assert found == [{"card": "a", "amount": 1.0}] * 2


def test_too_few_slots_are_refused_with_what_is_needed(connection: Connection, read: Reading, start: Starting) -> None:
    connection.create_topic("payments", 3)
    with pytest.raises(PipelineError, match=r"one for each of the 3 partitions.*Run it on local\[3\]"):
        start(amounts(read("payments")), "copy")
    assert "copy" not in connection.topics()


def test_slots_that_another_query_holds_are_not_free(connection: Connection, read: Reading, start: Starting) -> None:
    connection.create_topic("payments", 2)
    query = start(amounts(read("payments")), "copy", name="first", batch=LONG)
    send(connection, ("a", 1.0))
    wait_for_values(connection, "copy", query, bool)
    with pytest.raises(PipelineError, match=r"of the 2 that Spark has, 0 are free.*local\[4\]"):
        start(amounts(read("payments")), "another", name="second")


def test_shuffles_get_as_many_tasks_as_there_is_room_for(
    connection: Connection, read: Reading, start: Starting, real_time: SparkSession
) -> None:
    connection.create_topic("payments", 1)
    real_time.conf.set("spark.sql.shuffle.partitions", "9")
    try:
        query = start(amounts(read("payments")).groupBy("card").count(), "counts", batch=LONG)
        assert real_time.conf.get("spark.sql.shuffle.partitions") == "9", "the session is left as it was"
        send(connection, ("a", 1.0), ("b", 1.0))
        wait_for_values(connection, "counts", query, lambda found: len(found) == 2)
    finally:
        real_time.conf.set("spark.sql.shuffle.partitions", "1")


def test_rows_may_name_their_topics(connection: Connection, read: Reading, start: Starting) -> None:
    connection.create_topic("payments", 1)
    for topic in ("small", "large"):
        connection.create_topic(topic, 1)
    split = amounts(read("payments")).select(
        F.when(F.col("amount") > 100, "large").otherwise("small").alias("topic"),
        F.to_json(F.struct("card")).alias("value"),
    )
    query = start(split, None, batch=LONG)
    send(connection, ("a", 1.0), ("b", 200.0))
    wait_for_values(connection, "large", query, bool)
    wait_for_values(connection, "small", query, bool)
    assert values(connection, "small") == [{"card": "a"}]
    assert values(connection, "large") == [{"card": "b"}]


def test_state_that_was_kept_in_batches_is_refused(
    connection: Connection, read: Reading, start: Starting, tmp_path: Path
) -> None:
    connection.create_topic("payments", 1)
    send(connection, ("a", 1.0))
    counts = amounts(read("payments")).groupBy("card").count()
    writer = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoints" / "counts")).start().awaitTermination()
    with pytest.raises(CheckpointMismatchError, match="rename the query"):
        start(counts, "counts", name="counts")
