"""Pipelines in real-time mode: typed topics without Python, dead letters beside, and batches where it cannot be."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import PipelineError
from penstock.spark import Pipeline, RealTime
from tests.consuming.eventually import wait_until


@dataclass
class Payment:
    card: str
    amount: float


PAYMENTS = ps.Topic("payments", Payment, key=lambda payment: payment.card)


@pytest.fixture
def pipe(real_time: SparkSession, log_url: str, connection: ps.Connection) -> Iterator[Pipeline]:
    for topic in ("payments", "large", "payments.dlq"):
        connection.create_topic(topic, 1)
    with Pipeline("payments", log_url, spark=real_time) as pipeline:
        yield pipeline


def test_a_typed_topic_is_judged_record_by_record_and_what_is_broken_waits_in_the_dead_letters(
    pipe: Pipeline, connection: ps.Connection
) -> None:
    large = pipe.read(PAYMENTS, real_time=True).where("amount > 100").select("card", "amount")
    pipe.write(large, "large", key="card", guarantee="at-least-once", trigger=RealTime("5 minutes"))
    pipe.start()
    connection.send(PAYMENTS, Payment("ann", 50.0))
    connection.send("payments", b"{broken", key=b"ann")
    connection.send(PAYMENTS, Payment("bob", 150.0))
    with connection.read("large", follow=True, limit=1, timeout_s=120) as reader:
        assert [json.loads(record.value or b"") for record in reader] == [{"card": "bob", "amount": 150.0}]
    with connection.read("payments.dlq", follow=True, limit=1, timeout_s=120) as reader:
        assert [record.value for record in reader] == [b"{broken"]
    pipe.stop()
    assert pipe.undecodable() == {"payments": 1}


def test_what_spark_cannot_do_record_by_record_runs_in_batches_and_says_why(
    pipe: Pipeline, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.send(PAYMENTS, Payment("bob", 150.0)).result(30)
    sessions = (
        pipe.read(PAYMENTS)
        .withWatermark("timestamp", "1 second")
        .groupBy(F.session_window("timestamp", "5 seconds"), "card")
        .count()
    )
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        pipe.write(sessions, "visits", guarantee="at-least-once", trigger=RealTime())
    assert "'visits'" in caplog.text
    assert "batch" in caplog.text
    pipe.run(once=True)
    assert pipe.progress()["visits"].rows_read == 1


def test_a_row_that_an_expression_fails_for_is_a_letter_and_the_query_is_in_real_time_mode_again(
    pipe: Pipeline, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    cents = F.col("value").cast("string").cast("bigint").alias("cents")
    pipe.write(
        pipe.read("payments", engine="native").select(cents), "large", guarantee="at-least-once", trigger=RealTime()
    )
    with caplog.at_level(logging.INFO, "penstock.spark"):
        pipe.start()
        for value in (b"1", b"broken", b"2"):
            connection.send("payments", value)
        with connection.read("payments.dlq", follow=True, limit=1, timeout_s=120) as reader:
            assert [record.value for record in reader] == [b"broken"]
        wait_until(lambda: "is in real-time mode again" in caplog.text, 60)
        for value in (b"also broken", b"3"):
            connection.send("payments", value)
        with connection.read("payments.dlq", start="latest", follow=True, limit=1, timeout_s=120) as reader:
            assert [record.value for record in reader] == [b"also broken"]
        wait_until(lambda: caplog.text.count("is in real-time mode again") == 2, 60)
        pipe.stop()
    written = [json.loads(record.value or b"")["cents"] for record in connection.read("large")]
    assert set(written) == {1, 2, 3}, "at least once: rows that were written before the failure may come again"
    assert caplog.text.count("it starts again in batches, until it has caught up") == 2
    assert len(list(connection.read("payments.dlq"))) == 2


def test_a_row_that_an_expression_fails_for_ends_a_query_with_state_in_real_time_mode(
    pipe: Pipeline, connection: ps.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    cents = F.col("value").cast("string").cast("bigint").alias("cents")
    counts = pipe.read("payments", engine="native").select(cents).groupBy("cents").count()
    pipe.write(counts, "large", key="cents", guarantee="at-least-once", trigger=RealTime())
    pipe.start()
    connection.send("payments", b"broken")
    with pytest.raises(PipelineError, match="CAST_INVALID_INPUT"):
        pipe.wait(timeout_s=120)
    assert "it starts again" not in caplog.text


def test_a_query_that_has_run_once_in_batches_continues_in_real_time_mode(
    pipe: Pipeline, connection: ps.Connection, log_url: str, real_time: SparkSession
) -> None:
    def write(pipeline: Pipeline) -> None:
        read = pipeline.read("payments", engine="native").select("value")
        pipeline.write(read, "large", guarantee="at-least-once", trigger=RealTime())

    write(pipe)
    connection.send("payments", b"1").result(30)
    pipe.run(once=True, quiet=True)
    with Pipeline("payments", log_url, spark=real_time) as again:
        write(again)
        again.start()
        connection.send("payments", b"2").result(30)
        with connection.read("large", follow=True, limit=2, timeout_s=120) as reader:
            assert [record.value for record in reader] == [b"1", b"2"]
        assert again.progress()["large"].batch_id <= 0, "the second batch has not ended"
        again.stop()
