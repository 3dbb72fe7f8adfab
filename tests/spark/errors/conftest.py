"""A pipeline over a topic with orders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.spark.pipeline import Pipeline
from tests.spark.errors.shops import COUNT, ORDERS, Order


@pytest.fixture
def shop(spark: SparkSession, log_url: str, connection: ps.Connection) -> Iterator[Pipeline]:
    connection.create_topic("orders", 2)
    for number in range(COUNT):
        connection.send(ORDERS, Order(f"c{number % 7}", number))
    connection.flush(timeout_s=30)
    with Pipeline("shop", log_url, spark=spark) as pipeline:
        yield pipeline
