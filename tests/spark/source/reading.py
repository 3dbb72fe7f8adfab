"""Driving the readers as Spark does, without Spark: a batch is planned, its tasks are pickled, and each is read."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from penstock import Connection
from penstock.spark.source.read_options import parse_options
from penstock.spark.source.stream_reader import PenstockStreamReader
from penstock.streams.kafka.stream import kafka_of
from penstock.streams.record_columns import SCHEMA

Offset = dict[str, Any]


def stream_reader(url: str, topic: str, **options: str) -> PenstockStreamReader:
    return PenstockStreamReader(parse_options({"url": url, "topic": topic, **options}, streaming=True))


def next_batch(
    reader: PenstockStreamReader, start: Offset, limit: ReadLimit | None = None
) -> tuple[list[dict[str, Any]], Offset]:
    """The rows of the next batch, in the order of its tasks, and where it ended."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return rows_between(reader, start, end), end


def rows_between(reader: PenstockStreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    tasks = reader.partitions(start, end)
    there = pickle.loads(pickle.dumps(PenstockStreamReader(reader._options)))
    batches = [batch for task in tasks for batch in there.read(pickle.loads(pickle.dumps(task)))]
    return rows_of(batches)


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in batches:
        assert batch.schema.equals(SCHEMA), batch.schema
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def all_batches(reader: PenstockStreamReader, start: Offset) -> tuple[list[list[dict[str, Any]]], Offset]:
    """Batch after batch until there is nothing new."""
    batches: list[list[dict[str, Any]]] = []
    while True:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return batches, end
        batches.append(rows_between(reader, start, end))
        start = end


def send_numbers(connection: Connection, topic: str, numbers: range, partitions: int = 1) -> None:
    """Each number as text, in partition number % partitions."""
    for number in numbers:
        connection.send(topic, str(number), partition=number % partitions)
    connection.flush()


def numbers_of(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def delete_before(connection: Connection, topic: str, pointers: Mapping[int, int]) -> None:
    """As retention would do it, but now."""
    from confluent_kafka import TopicPartition

    places = [TopicPartition(topic, partition, pointer) for partition, pointer in pointers.items()]
    for future in kafka_of(connection).administration.admin.delete_records(places).values():
        future.result(30)


def folder_of(url: str) -> Path:
    return Path(url.removeprefix("log:"))
