"""A topic of Kafka, or of the embedded log, as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.abc import Feature, Features, GroupListener
from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt
from penstock.streams.kafka.feed import KafkaFeed
from penstock.streams.kafka.group_feed import KafkaGroupFeed
from penstock.streams.kafka.rereading import Rereader
from penstock.streams.kafka.sending import Sending
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.options import Options

FEATURES: Final = frozenset(
    {
        Feature.PARTITIONS,
        Feature.CHOSEN_PARTITION,
        Feature.KEYS,
        Feature.HEADERS,
        Feature.TIMES,
        Feature.GROUPS,
        Feature.TRANSACTIONS,
        Feature.DURABLE,
    }
)

_REREAD_AHEAD: Final = 10_000
"""How many records of a partition `read` fetches ahead: whoever reads in this way may well jump elsewhere next."""


def features_with(options: Options) -> Features:
    """What Kafka can do for a connection with these options."""
    return FEATURES | {Feature.IDEMPOTENCE} if options.acks == "all" else FEATURES


class Closeable(Protocol):
    def close(self) -> None: ...


class Link(Protocol):
    """What a stream needs of its connection. Each property raises ConnectionClosedError once that is closed."""

    @property
    def url(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def options(self) -> Options: ...

    @property
    def administration(self) -> TopicAdministration: ...

    @property
    def sender(self) -> Sending: ...

    def settle_sent(self) -> None:
        """Wait until what was sent is acknowledged or refused, at most as long as a delivery may take."""

    def keep(self, part: Closeable) -> None:
        """Close it when the connection is closed, if it is still there by then."""


class KafkaStream:
    """`penstock.abc.Stream`, `Feeding` and `Grouping` for one topic. Any thread may use it."""

    def __init__(self, link: Link, topic: str) -> None:
        self._link = link
        self._topic = topic
        self._rereader = Rereader(topic, lambda: self._new_feed(_REREAD_AHEAD))
        self._closed = False

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def features(self) -> Features:
        return features_with(self._link.options)

    def partitions(self) -> Sequence[int]:
        return self._topics.partitions_of(self._topic)

    def locate(self, partition: int, position: Position) -> Pointer:
        if position.kind is PositionKind.POINTER and not position.pointer.isdecimal():
            raise ConfigError(f"{position.pointer!r} is no pointer of topic {self._topic!r}: its pointers are offsets")
        topics = self._topics
        topics.require_partition(self._topic, partition)
        return topics.locate(self._topic, position, [partition])[partition]

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        topics = self._topics
        topics.require_partition(self._topic, partition)
        first = topics.earliest(self._topic, [partition])[partition]
        return first, max(first, topics.latest(self._topic, [partition])[partition])

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        """See `penstock.abc.Stream.read`. Quickest where each read goes on behind the one before.

        A read that comes back empty has seen the end of the partition, however short `wait_s` is, unless the broker
        could not be reached.
        """
        self._check_open()
        return self._rereader.read(partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """See `penstock.abc.Stream.append`. A record that cannot even be sent has a receipt that says so."""
        self._check_open()
        sender = self._link.sender
        topic = self._topic
        receipts = []
        for record in records:
            if record.topic != topic:
                raise ConfigError(f"a record for topic {record.topic!r} cannot be appended to topic {topic!r}")
            try:
                receipt = sender.send(
                    topic, record.value, record.key, record.headers, record.timestamp_ms, record.partition
                )
            except DeliveryError as error:
                receipt = Receipt(topic)
                receipt.settle(-1, -1, error)
            receipts.append(receipt)
        return receipts

    def feed(self) -> KafkaFeed:
        self._check_open()
        return self._new_feed(None)

    def group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> KafkaGroupFeed:
        """See `penstock.abc.Grouping.group_feed`; what is particular to Kafka stands at `KafkaGroupFeed`."""
        feed = KafkaGroupFeed(
            self._link.bootstrap,
            self._link.options,
            self._topic,
            self._topics,
            group,
            listener,
            member=member,
            assignor=assignor,
            session_timeout_s=session_timeout_s,
        )
        self._link.keep(feed)
        return feed

    def close(self) -> None:
        """See `penstock.abc.Stream.close`. Feeds are closed by who has them, and the connection stays open."""
        if self._closed:
            return
        self._closed = True
        try:
            self._rereader.close()
        finally:
            self._link.settle_sent()

    def _new_feed(self, ahead: int | None) -> KafkaFeed:
        feed = KafkaFeed(self._link.bootstrap, self._link.options, self._topic, self._topics, ahead)
        self._link.keep(feed)
        return feed

    @property
    def _topics(self) -> TopicAdministration:
        self._check_open()
        return self._link.administration

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(
                f"the stream of topic {self._topic!r} is closed: ask the connection for it again"
            )
