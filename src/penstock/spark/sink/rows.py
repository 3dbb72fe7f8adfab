"""From record columns to the columns of `WRITTEN`, and from these to the arguments of librdkafka's produce."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.errors import DeliveryError, SchemaMismatchError
from penstock.model import Headers, NewRecord
from penstock.spark.values.columns import RECORD, WRITTEN
from penstock.streams.kafka.producing.producer import Row

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def check_records(schema: StructType, topic: str | None) -> None:
    """Raise SchemaMismatchError unless rows of this schema are records."""
    names = set(schema.names)
    unknown = sorted(names - {*WRITTEN.names, *RECORD.names})
    if "value" not in names or unknown:
        raise SchemaMismatchError(
            'the format "penstock" writes records: a column `value` of text or bytes, and optionally key, headers, '
            f"topic, partition and timestamp; the frame has {', '.join(schema.names)}. Convert it with "
            "penstock.spark.values.encoding.encode_frame(frame, topic), or with to_json(struct('*')).alias('value')"
        )
    for field in WRITTEN:
        if field.name not in names:
            continue
        found = schema[field.name].dataType
        fits = (
            isinstance(found, StringType | BinaryType)
            if isinstance(field.dataType, BinaryType)
            else found.simpleString() == field.dataType.simpleString()
        )
        if not fits:
            raise SchemaMismatchError(
                f"column {field.name!r} is {found.simpleString()}; it must be {field.dataType.simpleString()}"
            )
    if topic is None and "topic" not in names:
        raise SchemaMismatchError("there is no topic: set the option 'topic', or add a column `topic`")


def written_columns(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """The rows with exactly the columns of `WRITTEN`.

    `topic` overrides the column of that name. In rows with a pointer, the partition is the one that the row was read
    from, and is ignored.
    """
    ignored = {"topic"} if topic is not None else set()
    if "pointer" in batch.schema.names:
        ignored.add("partition")
    columns = []
    for name, kind in _TYPES.items():
        if name not in batch.schema.names or name in ignored:
            columns.append(pa.nulls(batch.num_rows, kind))
        else:
            columns.append(batch.column(name).cast(kind))
    return pa.RecordBatch.from_arrays(columns, names=list(_TYPES))


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """The rows of a batch; rows without a topic go to `topic`."""
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
    """The rows of a batch as records."""
    for name, value, key, partition, _, _, timestamp_ms, headers in rows_of(batch, topic):
        kept: Headers = tuple(headers) if headers else ()  # type: ignore[arg-type]  # bytes, by the schema
        yield NewRecord(name, value, key, kept, timestamp_ms or None, None if partition < 0 else partition)


def topics_in(batch: pa.RecordBatch, topic: str | None) -> set[str]:
    """The topics that the rows of a batch go to."""
    return {name or _or_refuse(topic) for name in pc.unique(batch.column("topic")).to_pylist()}


def _or_refuse(topic: str | None) -> str:
    if topic is None:
        raise SchemaMismatchError("a row has no topic: its column `topic` is null, and the target has no default topic")
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
        raise DeliveryError(f"a row has partition {pc.min(column)}: it must be >= 0, or null to have one chosen")
    return partitions


def _timestamps_ms(column: pa.Array) -> Iterable[int]:
    if column.null_count == len(column):
        return itertools.repeat(0)
    milliseconds = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    least = pc.min(milliseconds).as_py()
    if least <= 0:
        raise DeliveryError(f"a row has the timestamp {pc.min(column)}: it must be after 1970-01-01T00:00Z")
    times: list[int] = pc.fill_null(milliseconds, 0).to_pylist()
    return times


def _headers(column: pa.Array) -> Iterable[list[tuple[str, str | bytes | None]] | None]:
    if column.null_count == len(column):
        return itertools.repeat(None)
    return [[(pair["key"], pair["value"]) for pair in pairs] if pairs else None for pairs in column.to_pylist()]
