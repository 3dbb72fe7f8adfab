"""The progress of queries as offsets of groups, as tools for the lag of groups see it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.abc import GroupAdmin
from penstock.errors import GroupError
from penstock.model.administration import PartitionId
from penstock.spark.pipeline import Pipeline
from penstock.spark.run.group_offsets import GroupOffsets, offsets_read
from penstock.spark.run.plans import PlannedSource
from penstock.spark.run.settings import Engine
from penstock.spark.sessions.opening import has_connector
from tests.consuming.eventually import wait_until

WAIT_S = 30


def forget(frame: DataFrame, _: int) -> int:
    return frame.count()


@pytest.fixture
def two_topics(connection: ps.Connection) -> ps.Connection:
    for topic in ("orders", "returns"):
        connection.create_topic(topic, 2)
        for number in range(10):
            connection.send(topic, str(number), partition=number % 2)
    connection.flush(timeout_s=WAIT_S)
    return connection


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_group_for_each_query_has_the_offsets_that_it_has_read(
    engine: Engine, spark: SparkSession, log_url: str, two_topics: ps.Connection
) -> None:
    if engine == "native" and not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not there: run `penstock spark jars`")
    for run in (1, 2):
        with Pipeline("both", log_url, spark=spark, engine=engine) as pipe:
            orders = pipe.read("orders")
            pipe.write(orders, forget, name="one")
            pipe.write(orders.select("value").unionAll(pipe.read("returns").select("value")), forget, name="two")
            pipe.run(once=True, quiet=True)
        groups = two_topics.group_admin()
        mine = {("orders", 0): 4 + run, ("orders", 1): 5}
        assert groups.committed("both.one") == mine
        assert groups.committed("both.two") == mine | {("returns", 0): 5, ("returns", 1): 5}
        assert groups.describe("both.one").lag == 0
        two_topics.send("orders", "more", partition=0).result(timeout=WAIT_S)
    assert two_topics.group_admin().describe("both.one").lag == 1, "what came after the last run"


def test_no_group_appears_where_it_is_switched_off(
    spark: SparkSession, log_url: str, two_topics: ps.Connection
) -> None:
    with Pipeline("quiet", log_url, spark=spark, group_offsets=False) as pipe:
        pipe.write(pipe.read("orders"), forget, name="one")
        pipe.run(once=True, quiet=True)
    assert two_topics.group_admin().all() == []


OWN = {"log:/data", "127.0.0.1:9092"}


def source(end: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"source": "penstock", "end": end, "latest": None}


def test_sources_of_other_streams_and_without_names_are_left_out() -> None:
    named, elsewhere = PlannedSource("log:/data", ["a"]), PlannedSource("log:/elsewhere", ["a"])
    several = PlannedSource("127.0.0.1:9092", [])
    read = offsets_read(
        [named, elsewhere, several, PlannedSource(None, [])],
        [source({"0": 3}), source({"0": 9}), source({"b/1": 4}), source({"0": 1})],
        OWN,
    )
    assert read == {("a", 0): 3, ("b", 1): 4}
    assert offsets_read([named], [source(None)], OWN) == {}
    assert offsets_read([named, named], [source({"0": 3})], OWN) == {}, "it is not known which source this is"


class Groups:
    """Refuses commits while the group has a member."""

    def __init__(self) -> None:
        self.has_member = True
        self.refused = 0
        self.moved: list[tuple[str, str]] = []

    def move(self, group: str, offsets: Mapping[PartitionId, int], *, is_checkpointed: bool = False) -> None:
        if self.has_member:
            self.refused += 1
            raise GroupError(f"group {group!r} could not be moved: it has members")
        self.moved.append((group, json.dumps(sorted(offsets.values()))))


def test_a_commit_that_is_refused_is_logged_once_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    groups = Groups()

    def admin(timeout_s: float) -> GroupAdmin:
        return groups  # type: ignore[return-value]  # the part of it that is used

    offsets = GroupOffsets(admin, "usage")
    offsets.start()
    with caplog.at_level(logging.WARNING):
        offsets.note("spend", {("orders", 0): 1})
        wait_until(lambda: groups.refused >= 2, WAIT_S)
    assert [record.getMessage() for record in caplog.records if "usage.spend" in record.getMessage()] == [
        "the offsets of group usage.spend, the progress of a query, are not committed: "
        "group 'usage.spend' could not be moved: it has members"
    ]
    groups.has_member = False
    offsets.note("spend", {("orders", 0): 2})
    offsets.close()
    assert groups.moved[-1] == ("usage.spend", "[2]"), "the newest is committed at the end"
