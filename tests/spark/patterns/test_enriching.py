"""A stream sees the table as it is now: without a restart, and without asking a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Connection
from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.patterns import enrich
from penstock.spark.reading import read_table
from tests.spark.time.batches import Batches, Collected

CLICKS = "id int, user string"


def put(connection: Connection, user: str, city: str | None) -> None:
    connection.send("users", None if city is None else city.encode(), key=user.encode()).result(timeout=20)


def test_a_table_that_changes_between_batches_is_seen_as_it_is(
    spark: SparkSession, tmp_path: Path, connection: Connection, log_url: str
) -> None:
    connection.create_topic("users", 2)
    put(connection, "ann", "Oslo")
    put(connection, "bob", "Rome")
    clicks = Batches(spark, tmp_path / "in", CLICKS)
    for number, user in enumerate(["ann", "ann", "bob", "carl", "ann"]):
        clicks.put([{"id": number, "user": user}])
    users = read_table(spark, log_url, "users").select(
        F.col("key").cast("string").alias("name"), F.col("value").cast("string").alias("city"), "pointer"
    )

    def between(batch_id: int) -> None:
        if batch_id == 0:
            put(connection, "ann", "Lima")
            put(connection, "bob", None)
            put(connection, "carl", "Bern")

    collected = Collected(tmp_path / "ck")
    found = enrich(clicks.stream(), users, {"user": "name"}, prefix="user_")
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=3, after=between)
    collected.run(found)
    assert found.columns == ["id", "user", "user_city"]
    assert sorted(tuple(row) for row in collected.rows) == [
        (0, "ann", "Oslo"),
        (1, "ann", "Lima"),
        (2, "bob", None),
        (3, "carl", "Bern"),
        (4, "ann", "Lima"),
    ]


def test_what_cannot_be_joined_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    clicks = Batches(spark, tmp_path / "in", CLICKS).stream()
    users = spark.createDataFrame([("ann", 1, 5)], "user string, id int, pointer long")
    with pytest.raises(SchemaMismatchError, match="both stream and table have id"):
        enrich(clicks, users, "user")
    with pytest.raises(SchemaMismatchError, match="no column 'name'; the table has"):
        enrich(clicks, users, {"user": "name"})
    with pytest.raises(ConfigError, match="the table is a stream"):
        enrich(clicks, clicks, "user")
    with pytest.raises(ConfigError, match="how='full' is not allowed"):
        enrich(clicks, users, "user", "full")  # type: ignore[arg-type]
    assert enrich(clicks, users, ["user"], "inner", columns=["pointer"]).columns == ["id", "user", "pointer"]
