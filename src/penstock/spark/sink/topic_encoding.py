"""From the frames of a `TopicTarget` to records with the columns of `WRITTEN`.

`penstock.spark.values.encoding` encodes a row as bytes. This module adds the header with the idempotency key, and
handles rows that name their own topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructField, StructType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.serde import Topic
from penstock.spark.values.columns import HEADERS, WRITTEN, name_beside, require_columns
from penstock.spark.values.encoding import Key, check_columns, encode_frame, is_raw, key_column
from penstock.spark.values.json_text import json_object
from penstock.spark.values.types import columns_of

if TYPE_CHECKING:
    from penstock.spark.sink.topic import TopicTarget

IDEMPOTENCY_KEY_HEADER: Final = "penstock-idempotency-key"
"""The header with the idempotency key of a record. A consumer with
`idempotency_key="header:penstock-idempotency-key"` processes each key once."""

_ANY: Final = "of each row"


def check_encodable(target: TopicTarget, schema: StructType) -> None:
    """Raise SchemaMismatchError or ConfigError if frames of this schema cannot be written."""
    topic = target.topic
    if target.idempotency_key is not None:
        _check_idempotency_key(schema, target.idempotency_key)
        schema = _with_headers_field(schema, target.idempotency_key, topic)
    names = [target.key] if isinstance(target.key, str) else target.key
    if isinstance(names, list | tuple):
        require_columns(schema.names, names, " for the key")
    if topic is None and not (is_raw(schema) and "topic" in schema.names):
        raise SchemaMismatchError(
            "without a topic, each row must be a record that names one: the frame needs the columns `topic` and "
            f"`value`, and may have key, headers, partition and timestamp; it has {', '.join(schema.names)}"
        )
    check_columns(schema, _ANY if topic is None else topic)


def encoded(target: TopicTarget, frame: DataFrame) -> DataFrame:
    """The rows as records."""
    topic, key = target.topic, target.key
    if target.idempotency_key is not None:
        frame, key = _with_idempotency_key(frame, target.idempotency_key, topic, key)
    return _routed(frame, key) if topic is None else encode_frame(frame, topic, key=key)


def _routed(frame: DataFrame, key: Key) -> DataFrame:
    made = key_column(frame, key)
    given = {name: frame[name] for name in WRITTEN.names if name in frame.columns}
    if made is not None:
        given["key"] = made
    if "pointer" in frame.columns:  # then the partition is the one that the record was read from
        given.pop("partition", None)
    return frame.select(
        *(
            (given[field.name] if field.name in given else sql.lit(None)).cast(field.dataType).alias(field.name)
            for field in WRITTEN
        )
    )


def _with_idempotency_key(
    frame: DataFrame, column: str, topic: Topic[Any] | str | None, key: Key
) -> tuple[DataFrame, Key]:
    """The frame with the idempotency key in its headers, and without the column unless it has another use."""
    name = _headers_name(topic)
    before = frame[name] if name in frame.columns else None
    headers = _with_header(before, frame[f"`{column}`"])
    if not _is_for_headers_only(frame.schema, column, topic):
        if not isinstance(topic, Topic) and not is_raw(frame.schema):
            value = json_object([frame[f"`{each}`"] for each in frame.columns])
            made = key_column(frame, key)
            keys = [] if made is None else [made.alias("key")]
            return frame.select(value.alias("value"), headers.alias("headers"), *keys), None
        return frame.withColumn(name, headers), key
    if key == column:
        made = key_column(frame, key)
        assert made is not None
        frame, key = frame.withColumn("key", made), None
    return frame.withColumn(name, headers).drop(column), key


def _is_for_headers_only(schema: StructType, column: str, topic: Topic[Any] | str | None) -> bool:
    """Whether the column is neither a field of the value nor a column of the record."""
    if isinstance(topic, Topic):
        return column not in columns_of(topic).names and column not in ("key", "topic", "partition")
    return is_raw(_without(schema, column)) and not is_raw(schema)


def _with_headers_field(schema: StructType, column: str, topic: Topic[Any] | str | None) -> StructType:
    if _is_for_headers_only(schema, column, topic):
        schema = _without(schema, column)
    elif not isinstance(topic, Topic) and not is_raw(schema):
        return schema
    name = _headers_name(topic)
    return StructType([*_without(schema, name).fields, StructField(name, HEADERS)])


def _without(schema: StructType, column: str) -> StructType:
    return StructType([field for field in schema if field.name != column])


def _headers_name(topic: Topic[Any] | str | None) -> str:
    return name_beside(columns_of(topic), "headers") if isinstance(topic, Topic) else "headers"


def _with_header(before: Column | None, key: Column) -> Column:
    """The headers with the idempotency key appended, unless it is null."""
    pair = sql.struct(
        sql.lit(IDEMPOTENCY_KEY_HEADER).alias("key"), key.cast(StringType()).cast(BinaryType()).alias("value")
    )
    none = sql.lit(None).cast(HEADERS)
    kept = none if before is None else before
    added = sql.concat(sql.coalesce(kept, sql.array().cast(HEADERS)), sql.array(pair).cast(HEADERS))
    return sql.when(key.isNull(), kept).otherwise(added)


def _check_idempotency_key(schema: StructType, column: str) -> None:
    require_columns(schema.names, [column], " for the idempotency key")
    kind = schema[column].dataType
    if not isinstance(kind, StringType | BinaryType | IntegralType):
        raise ConfigError(
            f"column {column!r} cannot be an idempotency key: it is {kind.simpleString()}; cast it to a string or an "
            "integer"
        )
