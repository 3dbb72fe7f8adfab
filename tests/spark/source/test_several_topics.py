"""Lists and patterns of topics in one query: which joins, which leaves, and what the checkpoint keeps of them."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Connection, Topic, TopicPattern
from penstock.errors import CheckpointMismatchError, ConfigError, RecordsLostError, UnknownTopicError
from penstock.spark import Pipeline
from penstock.spark.reading import read_batch, read_stream
from penstock.spark.sessions.opening import has_connector
from penstock.spark.source.read_options import parse_options
from penstock.spark.source.stream_reader import PenstockStreamReader
from penstock.streams.topic_patterns import TopicChoice
from tests.spark.source.reading import all_batches, next_batch, numbers_of, rows_between, send_numbers
from tests.spark.source.test_in_spark import run
from tests.spark.source.test_stream_reader import look_again
from tests.spark.text_ids.penstock_text_ids import TextIds


def reader_of(url: str, **options: str) -> PenstockStreamReader:
    return PenstockStreamReader(parse_options({"url": url, **options}, streaming=True))


def by_topic(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(int(row["value"]))
    return {topic: sorted(values) for topic, values in found.items()}


def test_topics_that_match_later_join_and_a_limit_is_of_all_together(
    connection: Connection, log_url: str, topic: str
) -> None:
    for name, count in (("a", 30), ("b", 10)):
        connection.create_topic(f"{topic}.{name}", 2)
        send_numbers(connection, f"{topic}.{name}", range(count), 2)
    connection.create_topic(f"{topic}.a.dlq")
    reader = reader_of(log_url, topicPattern=rf"{topic}\..*", maxRecordsPerBatch="20", alignPartitions="never")
    start = reader.initialOffset()
    assert start.keys() == {f"{topic}.a", f"{topic}.b", "@id", "@from"}
    first, end = next_batch(reader, start)
    assert {name: len(values) for name, values in by_topic(first).items()} == {f"{topic}.a": 15, f"{topic}.b": 5}
    connection.create_topic(f"{topic}.c")
    send_numbers(connection, f"{topic}.c", range(100, 103))
    look_again(reader)
    more, reached = all_batches(reader, end)
    assert by_topic([row for rows in (first, *more) for row in rows]) == {
        f"{topic}.a": list(range(30)),
        f"{topic}.b": list(range(10)),
        f"{topic}.c": [100, 101, 102],
    }
    again = reader_of(log_url, topicPattern=rf"{topic}\..*")
    assert rows_between(again, start, end) == first
    assert again.latestOffset(reached, again.getDefaultReadLimit()) == reached


def test_a_pattern_may_match_nothing_at_first(connection: Connection, log_url: str, topic: str) -> None:
    reader = reader_of(log_url, topicPattern=rf"{topic}\..*", startingPosition="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start == {}
    connection.create_topic(f"{topic}.a")
    send_numbers(connection, f"{topic}.a", range(3))
    look_again(reader)
    rows, _ = next_batch(reader, start)
    assert numbers_of(rows) == [0, 1, 2], "a topic that is created later is read from its beginning"


def test_a_deleted_topic_is_reported_and_an_error_only_if_records_were_lost(
    connection: Connection, log_url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    for name in (a, b):
        connection.create_topic(name)
        send_numbers(connection, name, range(4))
    options = {"topics": json.dumps([a, b]), "alignPartitions": "never", "maxRecordsPerBatch": "4"}
    reader = reader_of(log_url, **options)
    start = reader.initialOffset()
    _, half = next_batch(reader, start)
    _, whole = next_batch(reader, half)
    reader.latestOffset(whole, reader.getDefaultReadLimit())
    connection.delete_topic(a)
    send_numbers(connection, b, range(4, 6))
    look_again(reader)
    with caplog.at_level(logging.WARNING):
        rows, then = next_batch(reader, whole)
    assert by_topic(rows) == {b: [4, 5]}
    assert a not in then
    assert f"topic {a!r}, partition 0 does not exist any more; everything in it was read" in caplog.text
    strict = reader_of(log_url, **options)
    with pytest.raises(RecordsLostError, match=re.escape(f"topic {a!r}, partition 0 does not exist any more")):
        strict.latestOffset(half, strict.getDefaultReadLimit())
    with pytest.raises(RecordsLostError):
        strict.partitions(start, half)
    lenient = reader_of(log_url, topics=options["topics"], onExpired="earliest")
    assert by_topic(rows_between(lenient, start, half)) == {b: [0, 1]}
    connection.create_topic(a)
    send_numbers(connection, a, range(50, 53))
    look_again(reader)
    rows, _ = next_batch(reader, then)
    assert by_topic(rows) == {a: [50, 51, 52]}, "a topic created again is a new one"


def test_a_checkpoint_of_one_topic_goes_on_with_several_that_contain_it(
    connection: Connection, log_url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    for name in (a, b):
        connection.create_topic(name)
        send_numbers(connection, name, range(3))
    id = connection.admin().describe(a).id
    old = {a: {"0": 2}, "@id": id, "@from": {"0": 0}}  # as it was written before there were several topics
    reader = reader_of(log_url, topics=json.dumps([a, b]))
    rows, end = next_batch(reader, old)
    assert by_topic(rows) == {a: [2], b: [0, 1, 2]}
    assert end["@from"] == {b: {"0": 0}}
    alone = reader_of(log_url, topic=b)
    with caplog.at_level(logging.WARNING):
        assert alone.latestOffset(end, alone.getDefaultReadLimit())[b] == {"0": 3}
    assert f"topic {a!r} is not read any more" in caplog.text
    with pytest.raises(CheckpointMismatchError, match=re.escape(f"belongs to {a!r}, not to topic {b!r}")):
        alone.latestOffset(old, alone.getDefaultReadLimit())


def test_topics_of_a_stream_without_administration_are_listed_by_itself(tmp_path: Path) -> None:
    stream = TextIds(f"textids:{tmp_path / 'records.db'}", {})
    with pytest.raises(ConfigError, match="'topic' and 'topicPattern' exclude each other"):
        reader_of(stream.url, topic="a", topicPattern="b")
    reader = reader_of(stream.url, topicPattern="t.*", maxRecordsPerBatch="3")
    for name in ("t1", "t2", "u"):
        stream.create_topic(name)
    assert reader.initialOffset().keys() == {"t1", "t2", "@from"}


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_query_reads_a_list_and_tells_the_topics_apart(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path, engine: Any
) -> None:
    if engine == "native" and not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not on the class path: run `penstock spark jars`")
    names = [f"{topic}.a", f"{topic}.b"]
    for number, name in enumerate(names):
        connection.create_topic(name)
        send_numbers(connection, name, range(10 * number, 10 * number + 3))
    wanted = {names[0]: [0, 1, 2], names[1]: [10, 11, 12]}
    pattern = re.compile(rf"{topic}\.[AB]", re.IGNORECASE)
    choices: tuple[TopicChoice, ...] = (names, pattern)
    for number, choice in enumerate(choices):
        frame = read_stream(spark, log_url, choice, engine=engine)
        [rows] = run(frame, tmp_path / str(number))
        assert by_topic([row.asDict() for row in rows]) == wanted
    assert by_topic([row.asDict() for row in read_batch(spark, log_url, names, engine=engine).collect()]) == wanted
    begin = {names[0]: {0: 1}, names[1]: {0: 3}}
    rows = read_batch(spark, log_url, names, engine=engine, start=begin).collect()
    assert by_topic([row.asDict() for row in rows]) == {names[0]: [1, 2]}
    with pytest.raises(UnknownTopicError, match="nowhere"):
        read_stream(spark, log_url, [*names, "nowhere"], engine=engine)


@dataclass
class Order:
    id: int


@dataclass
class Other:
    name: str


def test_a_pipeline_reads_typed_topics_by_a_pattern_and_by_a_list(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path
) -> None:
    a, b = Topic(f"{topic}.a", Order), Topic(f"{topic}.b", Order)
    for number, each in enumerate((a, b)):
        connection.create_topic(each.name)
        connection.send(each, Order(number)).result(10)
    connection.send(b.name, b"no order").result(10)
    pipeline = Pipeline("several", log_url, spark=spark, checkpoints=str(tmp_path / "state"))
    seen: dict[str, list[tuple[str, int]]] = {"list": [], "pattern": []}

    def keep(where: str) -> Any:
        def into(frame: DataFrame, _: int) -> None:
            seen[where] += [(row.topic, row.id) for row in frame.collect()]

        return into

    pipeline.write(pipeline.read([a, b]), keep("list"), name="list")
    orders = TopicPattern(re.compile(rf"{topic}\..*"), Order)
    pipeline.write(pipeline.read(orders), keep("pattern"), name="pattern")
    with pytest.raises(ConfigError, match="read its own results"):
        pipeline.write(pipeline.read(a), f"{topic}.sums")
    with pytest.raises(ConfigError, match="have other columns"):
        pipeline.read([a, Topic(f"{topic}.b", Other)])
    with pytest.raises(ConfigError, match="some are Topics and some are names"):
        pipeline.read([a, b.name])
    pipeline.run(once=True, quiet=True)
    assert {where: sorted(rows) for where, rows in seen.items()} == {
        "list": [(a.name, 0), (b.name, 1)],
        "pattern": [(a.name, 0), (b.name, 1)],
    }
    assert pipeline.undecodable() == {a.name: 0, b.name: 1}
    pipeline.close()
