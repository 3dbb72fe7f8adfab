"""Typed topics without Python: the same columns and the same dead letters as the decoder's."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.dead_letters import open_dead_letters
from penstock.errors import ConfigError
from penstock.model import DeadLetterFilter
from penstock.spark.reading import read_batch, read_stream
from penstock.spark.realtime.planning import planned
from penstock.spark.realtime.typed_reading import decoded_in_jvm, undecodable, why_not_in_jvm
from penstock.spark.values.decoding import Decoder

pytestmark = pytest.mark.usefixtures("real_time")


@dataclasses.dataclass
class Reading:
    sensor: str
    number: int
    degrees: float | None
    at: datetime.datetime
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plain:
    sensor: str
    number: int
    degrees: float | None
    at: datetime.datetime
    tags: list[str]
    is_new: bool
    note: str | None = None
    topic: str | None = None


plain = ps.Topic("readings", Plain)
AT = datetime.datetime(2026, 1, 1, 12, 30, tzinfo=datetime.UTC)

GOOD = (
    Plain("a", 1, 20.5, AT, ["x", "y"], True),
    Plain("b", -(2**63), None, AT, [], False, "n", "own"),
    Plain("ä\u0000", 2**63 - 1, 3.0, AT + datetime.timedelta(microseconds=1), ["z"], True, None),
)


def json_with(**changed: str) -> bytes:
    """A good value as JSON, but for these fields."""
    fields = {
        "sensor": '"a"',
        "number": "1",
        "degrees": "1",
        "at": '"2026-01-01T12:30:00Z"',
        "tags": "[]",
        "is_new": "true",
    }
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in {**fields, **changed}.items()) + "}").encode()


BAD = (
    b"",
    b"no json",
    b"[1]",
    b"7",
    b"null",
    b"{}",
    b"\xff\xfe",
    json_with()[:-1],
    json_with(number='"1"'),
    json_with(number="1.5"),
    json_with(number="9223372036854775808"),
    json_with(at='"never"'),
    json_with(tags="3"),
    json_with(is_new="1"),
    json_with(sensor="null"),
)


@pytest.fixture
def filled(log_url: str, connection: ps.Connection) -> str:
    connection.create_topic("readings", 1)
    for good in GOOD:
        connection.send(plain, good)
    for bad in BAD:
        connection.send("readings", bad)
    connection.send("readings", None, key=b"removed")
    connection.flush()
    return log_url


def decoder(url: str) -> Decoder:
    return Decoder(plain, url=url, group="tests")


def test_columns_are_those_of_the_decoder(filled: str, spark: SparkSession) -> None:
    records = read_batch(spark, filled, "readings", engine="native")
    rows = decoded_in_jvm(records, decoder(filled))
    assert rows.columns == decoder(filled).schema.names
    assert [field.dataType for field in rows.schema] == [field.dataType for field in decoder(filled).schema]
    found = {row["pointer"]: row.asDict() for row in rows.collect()}
    by_python = read_batch(spark, filled, "readings", engine="python", decoder=decoder(filled)).collect()
    assert found == {row["pointer"]: row.asDict() for row in by_python}


def test_what_cannot_be_read_is_in_the_dead_letters_once_each(
    filled: str, spark: SparkSession, connection: ps.Connection, tmp_path: Path
) -> None:
    records = read_stream(spark, filled, "readings", engine="native")
    for run in range(2):  # the second run, without a checkpoint, puts them again
        buried = undecodable(records, decoder(filled))
        query = buried.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(run)))
        query.trigger(availableNow=True).start().awaitTermination()
    letters = open_dead_letters("readings.dlq", connection)
    put = letters.browse(DeadLetterFilter())
    assert sorted(letter.record.value or b"" for letter in put) == sorted(BAD)
    assert {letter.group for letter in put} == {"tests"}
    letters.close()


def test_it_runs_in_real_time(filled: str, spark: SparkSession) -> None:
    rows = decoded_in_jvm(read_stream(spark, filled, "readings", engine="native"), decoder(filled))
    assert planned(rows.groupBy("sensor").count()).reasons == ()


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (ps.Topic("readings", Reading), "default"),
        (ps.Topic("readings", list[int]), "no fields"),
        (ps.Topic("readings", dict[str, Reading]), "no fields"),
    ],
)
def test_what_needs_python_is_refused(topic: ps.Topic[Any], reason: str) -> None:
    found = why_not_in_jvm(topic)
    assert found is not None
    assert reason in found


def test_a_topic_that_needs_python_is_refused_where_it_is_read(filled: str, spark: SparkSession) -> None:
    records = read_stream(spark, filled, "readings", engine="native")
    with pytest.raises(ConfigError, match="runs no Python"):
        decoded_in_jvm(records, Decoder(ps.Topic("readings", Reading), url=filled, group="tests"))
