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
from penstock.spark import Pipeline, RealTime


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
