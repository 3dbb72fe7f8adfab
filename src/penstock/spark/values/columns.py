"""The columns of a record in Spark: the same for every engine, every stream, and batch and streaming reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.abc import Feature
from penstock.errors import SchemaMismatchError
from penstock.spark.source.open_streams import features_of
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES

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
"""A record as a row. `timestamp_type` is "create" if the timestamp is the producer's, "append" if it is the log's
(topics with message.timestamp.type=LogAppendTime). `pointer` is text for streams without `Feature.OFFSETS`: see
`penstock.streams.record_columns.pointer_text`."""

ABOUT_A_RECORD: Final = ("key", "headers", "topic", "partition", "pointer", "timestamp", "timestamp_type")
"""The columns after the fields of a typed topic. If the type has a field of the same name, it is `record_NAME`."""

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
"""A row to be written. If topic, partition or timestamp is null, the sink, the partitioner or the producer sets it."""


def arrow_type_of(column: DataType) -> Any:
    """The Arrow type that Spark expects for a column."""
    return to_arrow_type(column, timezone="UTC")


def record_schema(*, has_offsets: bool) -> StructType:
    """RECORD, with `pointer` as text for streams whose pointers are not offsets."""
    if has_offsets:
        return RECORD
    return StructType([StructField("pointer", StringType(), False) if it.name == "pointer" else it for it in RECORD])


def stream_has_offsets(url: str, client: Mapping[str, Any]) -> bool:
    """Whether pointers are offsets, which have 64 bits and count records. Opens a stream that is not Kafka's."""
    return scheme_of(url) in KAFKA_SCHEMES or Feature.OFFSETS in features_of(url, client)


def name_beside(fields: StructType, column: str) -> str:
    """The name of one of `ABOUT_A_RECORD` beside these fields of a typed topic."""
    return f"record_{column}" if column in fields.names else column


def record_column(there: Sequence[str], name: str) -> str:
    """The name of one of `ABOUT_A_RECORD` in a frame with these columns. Raises SchemaMismatchError."""
    for column in (f"record_{name}", name):
        if column in there:
            return column
    raise SchemaMismatchError(f"there is no column {name!r} of the record: include it when you select columns")


def require_columns(
    there: Sequence[str],
    names: Sequence[str],
    purpose: str = "",
    *,
    what: str = "the frame",
    at_least_one: bool = False,
) -> None:
    """Raise SchemaMismatchError if a column of these names is missing; with `at_least_one`, also for an empty list."""
    missing = ", ".join(repr(name) for name in names if name not in there)
    if missing or (at_least_one and not names):
        problem = f"there is no column {missing}{purpose}" if missing else f"name at least one column{purpose}"
        raise SchemaMismatchError(f"{problem}; {what} has {', '.join(there)}")
