"""Frames for the tests of targets, and what came of them."""

from __future__ import annotations

import contextlib
from collections import Counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Connection
from tests.clients.waiting import eventually


def numbered(spark: SparkSession, first: int, end: int, partitions: int = 2) -> DataFrame:
    """Records whose values are the numbers from `first` to before `end`, and whose keys are their last digits."""
    text = F.col("id").cast("string")
    return spark.range(first, end, 1, partitions).select(F.right(text, F.lit(1)).alias("key"), text.alias("value"))


def numbers_in(connection: Connection, topic: str) -> Counter[int]:
    """How often each number is there, for those who read what is committed."""
    return Counter(int(record.value or b"-1") for record in connection.read(topic, timeout_s=20))


def assert_numbers(connection: Connection, topic: str, expected: Counter[int]) -> None:
    """Apache Kafka ends a transaction for its readers some milliseconds after it has answered the commit."""
    with contextlib.suppress(AssertionError):
        eventually("the numbers are there", lambda: numbers_in(connection, topic) == expected)
    assert numbers_in(connection, topic) == expected


def once_each(first: int, end: int) -> Counter[int]:
    return Counter(range(first, end))
