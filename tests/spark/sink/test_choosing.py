"""From what a user writes to a target, and the targets that are programs."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Connection, Topic
from penstock.errors import ConfigError
from penstock.model import Guarantee
from penstock.spark import Console, FunctionTarget, SqlTable, TopicTarget
from penstock.spark.pipeline import target_of
from penstock.spark.sink.target import Delivered, QueryIdentity, Target
from penstock.spark.sink.topic import IDEMPOTENCY_KEY_HEADER
from tests.spark.sink.frames import numbered


def test_a_name_a_topic_a_target_and_a_function_are_places_to_write_to(url: str) -> None:
    def keyed(topic: str | Topic[Any]) -> TopicTarget:
        return TopicTarget(url, topic, key="customer", guarantee=Guarantee.AT_LEAST_ONCE, partitions=3)

    def plain(topic: str | Topic[Any]) -> TopicTarget:
        return TopicTarget(url, topic)

    named = target_of("spend", keyed)
    assert isinstance(named, TopicTarget)
    assert (named.label, named.key, named.guarantee, named.partitions) == (
        "topic spend",
        "customer",
        Guarantee.AT_LEAST_ONCE,
        3,
    )
    assert target_of(Topic("spend", dict, serde="json"), plain).label == "topic spend"
    declared = target_of(Topic("spend", dict, serde="json", partitions=4), plain)
    assert isinstance(declared, TopicTarget)
    assert declared.partitions == 4
    table = SqlTable("sqlite:./x.db", "spend")
    assert target_of(table, plain) is table
    assert target_of(print, plain).label == "function print"
    for target in (named, table, Console(), FunctionTarget(print)):
        assert isinstance(target, Target)
    wrong: Any = 7
    with pytest.raises(ConfigError, match="is not a target"):
        target_of(wrong, plain)


def test_a_function_gets_each_batch_and_its_number(spark: SparkSession, identity: QueryIdentity) -> None:
    seen: list[tuple[int, int]] = []

    def note(frame: DataFrame, batch_id: int) -> int:
        seen.append((batch_id, frame.count()))
        return seen[-1][1]

    delivery = FunctionTarget(note).open(identity)
    assert delivery.deliver(spark.range(3), 7) == Delivered(3)
    assert seen == [(7, 3)]


def test_the_console_prints_what_came(
    spark: SparkSession, identity: QueryIdentity, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Console(rows=2).open(identity).deliver(spark.range(5), 3) == Delivered(5)
    printed = capsys.readouterr().out
    assert "spend, batch 3: 5 rows" in printed
    assert "only showing top 2 rows" in printed


@pytest.mark.parametrize("kept", [True, False], ids=["of the value", "beside the record"])
def test_an_idempotency_key_is_a_header(
    spark: SparkSession, url: str, topic: str, identity: QueryIdentity, sink_connection: Connection, kept: bool
) -> None:
    frame = numbered(spark, 0, 3).withColumn("order", F.concat(F.lit("o"), F.col("value")))
    if kept:
        frame = frame.select("order", F.lit(1).alias("amount"))
    target = TopicTarget(url, topic, idempotency_key="order")
    target.check(frame.schema, "append")
    delivery = target.open(identity)
    try:
        delivery.deliver(frame, 0)
    finally:
        delivery.close()
    found = list(sink_connection.read(topic))
    assert sorted(record.headers for record in found) == [
        ((IDEMPOTENCY_KEY_HEADER, f"o{each}".encode()),) for each in range(3)
    ]
    assert all((b"order" in (record.value or b"")) == kept for record in found)
