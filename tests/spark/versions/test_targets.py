"""Where versions write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock import Topic
from penstock.errors import ConfigError
from penstock.spark import Console, Folder, FunctionTarget, SqlTable, TopicTarget
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity
from penstock.spark.versions import versioned

URL = "kafka://127.0.0.1:9"


def test_the_first_version_writes_where_the_program_says() -> None:
    target = TopicTarget(URL, "spend")
    assert versioned(target, None) is target
    assert versioned(target, "v1") is target


def test_a_topic_keeps_everything_but_its_name() -> None:
    made = versioned(TopicTarget(URL, "spend", key="customer", compact=True, partitions=3), "v2")
    assert isinstance(made, TopicTarget)
    assert (made.name, made.key, made.compact, made.partitions) == ("spend.v2", "customer", True, 3)


def test_a_typed_topic_stays_typed() -> None:
    topic = Topic("spend", dict[str, int], key=lambda value: "k", partitions=2)
    made = versioned(TopicTarget(URL, topic), "v2")
    assert isinstance(made, TopicTarget)
    assert isinstance(made.topic, Topic)
    assert (made.topic.name, made.topic.type, made.topic.key) == ("spend.v2", topic.type, topic.key)
    assert (made.topic.serde, made.topic.partitions) == (topic.serde, 2)


def test_rows_that_choose_their_topic_go_to_that_of_the_version(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("x", "k", "mine"), ("y", "k", "other")], "value string, key string, topic string")
    made = versioned(TopicTarget(URL, None), "v2")
    assert isinstance(made, TopicTarget)
    records = made.encoded(frame).collect()
    assert {bytes(row["value"]): row["topic"] for row in records} == {b"x": "mine.v2", b"y": "other.v2"}


def test_tables_and_folders_have_a_place_for_each_version(tmp_path: Path) -> None:
    table = versioned(SqlTable(f"sqlite:{tmp_path}/x.db", "spend", key="customer"), "with-tax")
    assert isinstance(table, SqlTable)
    assert table.table == "spend_with_tax"
    folder = versioned(Folder(f"{tmp_path}/spend/"), "v2")
    assert isinstance(folder, Folder)
    assert folder.path == f"{tmp_path}/spend.v2"


def test_the_console_shows_any_version() -> None:
    console = Console()
    assert versioned(console, "v2") is console


def test_a_function_would_do_its_work_twice() -> None:
    with pytest.raises(ConfigError, match="has no versions"):
        versioned(FunctionTarget(lambda frame, batch_id: None, "notify"), "v2")


@dataclass(frozen=True, slots=True)
class _Own:
    place: str

    @property
    def label(self) -> str:
        return self.place

    def check(self, schema: StructType, mode: OutputMode) -> None: ...

    def open(self, identity: QueryIdentity) -> Delivery:
        raise NotImplementedError

    def for_version(self, version: str) -> _Own:
        return _Own(f"{self.place} of {version}")


def test_a_target_of_ones_own_may_have_versions() -> None:
    assert versioned(_Own("here"), "v2").label == "here of v2"
