"""`TopicTarget`: a topic as a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructField, StructType

from penstock.abc import Feature, Features
from penstock.errors import ConfigError, GuaranteeError, InvalidTopicError, SchemaMismatchError
from penstock.model import Guarantee
from penstock.serde import Topic
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity, guarantee_of
from penstock.spark.sink.task_transactions import PARALLEL_ABOVE_BYTES
from penstock.spark.sink.topic_delivery import AppendingDelivery, DirectDelivery, TransactionDelivery
from penstock.spark.source.open_streams import features_of
from penstock.spark.values.columns import HEADERS, WRITTEN, name_beside, require_columns
from penstock.spark.values.encoding import Key, check_columns, encode_frame, is_raw, key_column
from penstock.spark.values.json_text import json_object
from penstock.spark.values.types import columns_of
from penstock.streams.connecting import connect, open_stream
from penstock.streams.connection import Connection
from penstock.streams.kafka.stream import FEATURES
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, without_password

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


@dataclass(frozen=True, slots=True, eq=False)
class TopicTarget:
    """A topic of the stream at `url`, by name or as a `Topic`, which defines the serde of its records.

    For a topic by name, a frame with the column `value` and optionally `key`, `headers`, `partition` and `timestamp` is
    written as records; any other frame as one JSON object per row. `key` names the columns of the key. If `topic` is
    None, each row is a record that names its topic in the column `topic`. Missing topics are created with `partitions`,
    and compacted if `compact` is set, which requires keys.

    Exactly-once: each batch is published in one transaction together with its number, so a repeated batch or a second
    driver changes nothing. Consumers must read committed records only, as all of Penstock's do. At-least-once: the
    tasks write in parallel, and a repeated task writes again. With `idempotency_key`, a column, each record carries it
    in the header `penstock-idempotency-key`, and consumers with `idempotency_key="header:penstock-idempotency-key"`
    process each key once.

    An exactly-once batch with more than `parallel_above_bytes` of rows (None: never) is written by the tasks, each in
    a transaction of its own, which the driver commits one after the other: consumers see it part by part. Smaller
    batches pass through the driver, and appear at once.

    `client` has options of `connect`. `transaction_timeout_s` is how long publishing one batch may take, and how long a
    driver that died inside a transaction, and is not started again, can block readers.
    """

    url: str = field(repr=False)
    topic: Topic[Any] | str | None
    key: str | Sequence[str] | Column | None = field(default=None, kw_only=True)
    guarantee: Guarantee = field(default=Guarantee.EXACTLY_ONCE, kw_only=True)
    idempotency_key: str | None = field(default=None, kw_only=True)
    compact: bool = field(default=False, kw_only=True)
    partitions: int | None = field(default=None, kw_only=True)
    client: ConnectOptions | None = field(default=None, kw_only=True, repr=False)
    transaction_timeout_s: float = field(default=TRANSACTION_TIMEOUT_S, kw_only=True)
    parallel_above_bytes: int | None = field(default=PARALLEL_ABOVE_BYTES, kw_only=True)
    _features: Features = field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", guarantee_of(self.guarantee, self.label))
        if self.topic is not None and not self.name:
            raise InvalidTopicError("the name of a topic must not be empty")
        if self.partitions is None and isinstance(self.topic, Topic):
            object.__setattr__(self, "partitions", self.topic.partitions)
        if scheme_of(self.url) in KAFKA_SCHEMES:
            options_of(self.client or {})
        if self.partitions is not None and (isinstance(self.partitions, bool) or self.partitions < 1):
            raise ConfigError(f"{self.label}: partitions={self.partitions!r} must be an integer >= 1")
        if not 1 <= self.transaction_timeout_s <= 900:
            raise ConfigError(
                f"{self.label}: transaction_timeout_s={self.transaction_timeout_s!r} must be between 1 and 900, the "
                "broker's default maximum"
            )
        limit_bytes = self.parallel_above_bytes
        if limit_bytes is not None and (isinstance(limit_bytes, bool) or limit_bytes < 0):
            raise ConfigError(f"{self.label}: parallel_above_bytes={limit_bytes!r} must be an integer >= 0, or None")
        is_kafka = scheme_of(self.url) in KAFKA_SCHEMES
        features = FEATURES if is_kafka else features_of(self.url, self.client or {})
        shown = without_password(self.url)
        object.__setattr__(self, "_features", features)
        if self.guarantee is Guarantee.EXACTLY_ONCE and not is_kafka:
            raise GuaranteeError(
                f"exactly-once is not available for {self.label} of {shown}: {_why_not_exactly_once(features)}; set "
                "guarantee='at-least-once', and idempotency_key='COLUMN' if a column identifies the rows"
            )
        if self.idempotency_key is not None and Feature.HEADERS not in features:
            raise GuaranteeError(f"idempotency keys are not available on {shown}: it has no {Feature.HEADERS}")
        if self.compact and Feature.ADMIN not in features:
            raise ConfigError(f"{self.label} cannot be compacted: {shown} has no {Feature.ADMIN}")

    @property
    def name(self) -> str | None:
        """The name of the topic; None if each row names one."""
        return self.topic.name if isinstance(self.topic, Topic) else self.topic

    @property
    def label(self) -> str:
        return f"topic {self.name}" if self.name is not None else f"topics of {without_password(self.url)}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Any mode is allowed: update and complete send changed rows, or all rows, again."""
        check_encodable(self, schema)
        has_key = self.key is not None or "key" in schema.names
        for feature, is_used, what in (
            (Feature.KEYS, has_key, "omit key="),
            (Feature.HEADERS, "headers" in schema.names, "drop the column headers"),
        ):
            if is_used and feature not in self._features:
                raise ConfigError(f"{self.label}: {without_password(self.url)} has no {feature}: {what}")
        if self.compact and not has_key and not (isinstance(self.topic, Topic) and self.topic.key is not None):
            raise ConfigError(f"{self.label}: a compacted topic keeps the last record of each key: give key='COLUMN'")

    def open(self, identity: QueryIdentity) -> Delivery:
        if scheme_of(self.url) not in KAFKA_SCHEMES:
            return AppendingDelivery(self, open_stream(self.url, **(self.client or {})), identity)
        connection = self.connect()
        try:
            if self.guarantee is Guarantee.EXACTLY_ONCE:
                return TransactionDelivery(self, connection, identity)
            return DirectDelivery(self, connection, identity)
        except BaseException:
            connection.close()
            raise

    def connect(self) -> Connection:
        return connect(self.url, **(self.client or {}))

    def encoded(self, frame: DataFrame) -> DataFrame:
        """The rows as records with the columns of `WRITTEN`."""
        return encoded(self, frame)


def _why_not_exactly_once(features: Features) -> str:
    if Feature.TRANSACTIONS not in features:
        return f"it has no {Feature.TRANSACTIONS}"
    return "Spark's batches are published by Kafka's transactions, and it does not speak Kafka's protocol"
