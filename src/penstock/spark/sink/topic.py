"""`TopicTarget`: a topic as a place for results."""

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
from penstock.spark.sink.encoding import check_encodable, encoded
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S
from penstock.spark.sink.topic_delivery import AppendingDelivery, DirectDelivery, TransactionDelivery
from penstock.spark.targets import Delivery, OutputMode, QueryIdentity
from penstock.streams.connecting import connect, open_streams
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.stream import FEATURES
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.url import MemoryUrl, parse_url, without_password


@dataclass(frozen=True, slots=True, eq=False)
class TopicTarget:
    """A topic of the stream at `url`: by its name, or a `Topic` that says what its records are.

    For the name of a topic, a frame of the columns `value`, and perhaps `key`, `headers`, `partition` and `timestamp`,
    is written as it is, and any other as one JSON object for each row; a `Topic` has the serde for its rows. `key`
    names the column, or columns, that make the key. With None in place of a topic, each row is a record that names its
    topic in the column `topic`. Topics that are missing are created, with `partitions`, and compacted if `compact` is
    set, for which records need keys.

    Exactly-once: each batch is published in one transaction together with its mark; a run that is repeated, or a second
    driver, changes nothing. Readers must read what is committed, as all of Penstock's do. At-least-once: the tasks
    write, all at once; what is done again is there again. With `idempotency_key`, a column, each record carries it
    in the header `penstock-idempotency-key`, and consumers that are declared with
    `idempotency_key="header:penstock-idempotency-key"` take each once.

    `client` are options of `connect`. `transaction_timeout_s` is how long publishing one batch may take, and how long
    readers are held up by a driver that died inside a transaction and is not started again.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", _guarantee_of(self.guarantee, self.label))
        if self.topic is not None and not self.name:
            raise InvalidTopicError("a topic needs a name that is not empty")
        options_of(self.client or {})
        if self.partitions is not None and (isinstance(self.partitions, bool) or self.partitions < 1):
            raise ConfigError(f"{self.label}: partitions={self.partitions!r} is no number of 1 or more")
        if not 1 <= self.transaction_timeout_s <= 900:
            raise ConfigError(
                f"{self.label}: transaction_timeout_s={self.transaction_timeout_s!r} is not between 1 and 900, the "
                "most that brokers allow by default"
            )
        if self.guarantee is Guarantee.EXACTLY_ONCE and Feature.TRANSACTIONS not in features_of(self.url):
            raise GuaranteeError(
                f"exactly-once cannot be had for {self.label} of {self.url}: it has no {Feature.TRANSACTIONS}; say "
                "guarantee='at-least-once', and idempotency_key='COLUMN' if there is a column to know rows by"
            )
        if self.idempotency_key is not None and Feature.HEADERS not in features_of(self.url):
            raise GuaranteeError(f"an idempotency key cannot be had on {self.url}: it has no {Feature.HEADERS}")

    @property
    def name(self) -> str | None:
        """The name of the topic; None where each row has one."""
        return self.topic.name if isinstance(self.topic, Topic) else self.topic

    @property
    def label(self) -> str:
        return f"topic {self.name}" if self.name is not None else f"topics of {without_password(self.url)}"

    def check(self, schema: StructType, mode: OutputMode) -> None:
        """Any mode will do: update and complete send what changed, and all, again."""
        check_encodable(self, schema)
        has_key = self.key is not None or "key" in schema.names
        if self.compact and not has_key and not (isinstance(self.topic, Topic) and self.topic.key is not None):
            raise ConfigError(f"{self.label}: a compacted topic keeps the last record of each key: give key='COLUMN'")

    def open(self, identity: QueryIdentity) -> Delivery:
        if isinstance(parse_url(self.url), MemoryUrl):
            return AppendingDelivery(self, open_streams(self.url, **(self.client or {})), identity)
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
        """The rows as records: the columns of `WRITTEN`."""
        return encoded(self, frame)


def features_of(url: str) -> Features:
    """What the stream at a URL can do, without a connection where that is known beforehand."""
    if not isinstance(parse_url(url), MemoryUrl):
        return FEATURES
    streams = open_streams(url)
    try:
        return streams.features
    finally:
        streams.close()


def _guarantee_of(given: Guarantee | str, what: str) -> Guarantee:
    allowed = (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE)
    if given not in allowed:
        raise GuaranteeError(f"{what}: guarantee={str(given)!r} is not one of {', '.join(map(str, allowed))}")
    return Guarantee(given)
