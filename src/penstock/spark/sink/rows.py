"""From Arrow batches with the columns of `WRITTEN` to what librdkafka is handed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeliveryError, SchemaMismatchError
from penstock.model import Headers, NewRecord
from penstock.streams.kafka.transactions import Row


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """The rows of a batch; those that name no topic are for `topic`."""
    none: Any = itertools.repeat(None)
    return zip(
        _topics(batch, topic),
        batch.column("value").to_pylist(),
        batch.column("key").to_pylist(),
        _partitions(batch.column("partition")),
        none,
        none,
        _timestamps_ms(batch.column("timestamp")),
        _headers(batch.column("headers")),
        strict=False,
    )


def records_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[NewRecord]:
    """The same as records."""
    for name, value, key, partition, _, _, timestamp_ms, headers in rows_of(batch, topic):
        kept: Headers = tuple(headers) if headers else ()  # type: ignore[arg-type]  # bytes, by the schema
        yield NewRecord(name, value, key, kept, timestamp_ms or None, None if partition < 0 else partition)


def topics_in(batch: pa.RecordBatch, topic: str | None) -> set[str]:
    """Which topics the rows of a batch are for."""
    return {name or _or_refuse(topic) for name in pc.unique(batch.column("topic")).to_pylist()}


def _or_refuse(topic: str | None) -> str:
    if topic is None:
        raise SchemaMismatchError(
            "a row has no topic: its column `topic` is null, and the target names none to take instead"
        )
    return topic


def _topics(batch: pa.RecordBatch, topic: str | None) -> Iterable[str]:
    column = batch.column("topic")
    if column.null_count == len(column):
        return itertools.repeat(_or_refuse(topic), len(column))
    if column.null_count:
        column = pc.fill_null(column, _or_refuse(topic))
    names: list[str] = column.to_pylist()
    return names


def _partitions(column: pa.Array) -> Iterable[int]:
    if column.null_count == len(column):
        return itertools.repeat(-1)
    partitions: list[int] = pc.fill_null(column, -1).to_pylist()
    if (pc.min(column).as_py() or 0) < 0:
        raise DeliveryError(f"a row asks for partition {pc.min(column)}: they are 0, 1, 2, …, and null has one chosen")
    return partitions


def _timestamps_ms(column: pa.Array) -> Iterable[int]:
    if column.null_count == len(column):
        return itertools.repeat(0)
    milliseconds = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    least = pc.min(milliseconds).as_py()
    if least <= 0:
        raise DeliveryError(f"a row has the timestamp {pc.min(column)}, which is not after 1970: it cannot be sent")
    times: list[int] = pc.fill_null(milliseconds, 0).to_pylist()
    return times


def _headers(column: pa.Array) -> Iterable[list[tuple[str, str | bytes | None]] | None]:
    if column.null_count == len(column):
        return itertools.repeat(None)
    return [[(pair["key"], pair["value"]) for pair in pairs] if pairs else None for pairs in column.to_pylist()]
