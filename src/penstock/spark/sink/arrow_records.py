"""Arrow batches of records, as users of plain Spark write them, to the columns of `WRITTEN`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.errors import SchemaMismatchError
from penstock.spark.columns import RECORD, WRITTEN

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def check_records(schema: StructType, topic: str | None) -> None:
    """SchemaMismatchError unless rows of this schema are records."""
    names = set(schema.names)
    unknown = sorted(names - {*WRITTEN.names, *RECORD.names})
    if "value" not in names or unknown:
        raise SchemaMismatchError(
            'the format "penstock" writes records: a column `value` of text or bytes, and perhaps key, headers, topic, '
            f"partition and timestamp; the frame has {', '.join(schema.names)}. Make them with "
            "penstock.spark.encoding.encode_frame(frame, topic), or with to_json(struct('*')).alias('value')"
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
                f"column {field.name!r} is {found.simpleString()}, and should be {field.dataType.simpleString()}"
            )
    if topic is None and "topic" not in names:
        raise SchemaMismatchError("no topic is named: give the option 'topic', or a column `topic` for each row")


def as_records(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """The rows with exactly the columns of `WRITTEN`.

    A topic that is named wins over the column. Where there is a pointer, the partition is that of the place where the
    row was read, and says nothing about where it goes.
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
