"""`TopicTarget`: a topic as a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from penstock.abc import Feature, Features
from penstock.errors import ConfigError, GuaranteeError, InvalidTopicError
from penstock.model import Guarantee
from penstock.serde import Topic
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S
from penstock.spark.sink.target import Delivery, OutputMode, QueryIdentity, guarantee_of
from penstock.spark.sink.task_transactions import PARALLEL_ABOVE_BYTES
from penstock.spark.sink.topic_delivery import AppendingDelivery, DirectDelivery, TransactionDelivery
from penstock.spark.sink.topic_encoding import check_encodable, encoded
from penstock.spark.source.open_streams import features_of
from penstock.streams.connecting import connect, open_stream
from penstock.streams.connection import Connection
from penstock.streams.kafka.stream import FEATURES
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, without_password


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
            return DirectDelivery(self, connection)
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
