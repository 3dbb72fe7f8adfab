"""The columns of a record in Spark: the same for every engine, every stream, and batch and streaming reads."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RECORD: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("pointer", LongType(), False),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", StringType()),
    ]
)
"""What a record is as a row. `timestamp` is the record's own; `timestamp_type` says whose clock it was: "create" for
the producer's, "append" for the log's (topics with message.timestamp.type=LogAppendTime)."""

ABOUT_A_RECORD: Final = ("key", "headers", "topic", "partition", "pointer", "timestamp", "timestamp_type")
"""What stands behind the fields of a typed topic: where the record came from. One whose name is also a field of the
type is called `record_NAME` there."""

WRITTEN: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""What a row is on its way into a stream. A null topic, partition or timestamp is chosen by the sink, the partitioner,
the producer's clock."""


def name_beside(fields: StructType, column: str) -> str:
    """What one of `ABOUT_A_RECORD` is called beside these fields of a typed topic."""
    return f"record_{column}" if column in fields.names else column
