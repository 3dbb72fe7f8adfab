"""Kafka's brokers, or the one of an embedded log, as a stream."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from penstock.abc import Feature, Features, GroupListener, Isolation, Stream
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt
from penstock.model.administration import Offsets
from penstock.streams.adapting.stream_base import PARTITIONED_LOG
from penstock.streams.capability import capability
from penstock.streams.kafka.administration.groups import GroupAdministration
from penstock.streams.kafka.administration.reaching import check_reachable, check_there, new_admin
from penstock.streams.kafka.administration.survey import KafkaSurvey
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.groups.group_feed import KafkaGroupFeed
from penstock.streams.kafka.groups.group_reading import GroupReader
from penstock.streams.kafka.producing.sending import KafkaSender
from penstock.streams.kafka.producing.stalls import StallWatch
from penstock.streams.kafka.producing.transactions import TransactionalProducer, start_transactional
from penstock.streams.kafka.reading.feed import KafkaFeed, Rereader
from penstock.streams.kafka.reading.record_times import KafkaRecordTimes
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.settings import producer_configuration
from penstock.streams.options import Options
from penstock.streams.reading import Closeable, Start, StreamReader
from penstock.streams.url import CONFIG, LOG_CHECKPOINTS, KafkaUrl, kafka_url, without_password

FEATURES: Final[Features] = PARTITIONED_LOG | {Feature.OFFSETS, Feature.GROUPS, Feature.TRANSACTIONS, Feature.ADMIN}

_BROWSE_AHEAD: Final = 2_000
_BROWSE_SETTINGS: Final = {
    "queued.max.messages.kbytes": 4 * 1024,
    "fetch.max.bytes": 8 * 1024 * 1024,
    "fetch.message.max.bytes": 1024 * 1024,
}
"""Limits the memory for browsing a topic of large records."""
_REREAD_AHEAD: Final = 10_000
"""How many records of a partition `read` prefetches: its callers may well continue elsewhere."""


class BrokerKeeper(Protocol):
    """Keeps the broker of an embedded log running while the connection is open."""

    def tell(self, on_problem: Callable[[str], None]) -> None:
        """Call this when the broker can no longer be reached over this connection."""

    def close(self) -> None: ...


class KafkaStream:
    """`abc.Stream`, with all optional protocols, by librdkafka. Thread-safe."""

    def __init__(
        self,
        url: str,
        bootstrap: str,
        options: Options,
        keeper: BrokerKeeper | None = None,
        *,
        log_folder: Path | None = None,
    ) -> None:
        """`keeper` and `log_folder` are those of an embedded log."""
        self.url = without_password(url)
        self.bootstrap = bootstrap
        self.options = options
        self.problem: str | None = None
        self._keeper = keeper
        self._log_folder = log_folder
        self._sender: KafkaSender | None = None
        self._administration: TopicAdministration | None = None
        self._kept: weakref.WeakSet[Closeable] = weakref.WeakSet()
        """Feeds and readers."""
        self._lock = threading.Lock()
        self._closed = False
        if keeper is not None:
            keeper.tell(self._give_up)

    @property
    def features(self) -> Features:
        return FEATURES | {Feature.IDEMPOTENCE} if self.options.acks == "all" else FEATURES

    def open_topic(self, topic: str) -> KafkaTopicStream:
        self._check_open()
        return KafkaTopicStream(self, topic)

    def topics(self) -> list[str]:
        return [topic.name for topic in self.administration.all() if not topic.internal]

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self.administration.create(topic, partitions, {})

    def read(
        self,
        topic: str,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> KafkaReader:
        return KafkaReader(self.open_topic(topic), start, follow, limit, timeout_s, partitions)

    def group_reader(
        self,
        group: str,
        topic: str,
        *,
        reset: Literal["earliest", "latest"],
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
    ) -> GroupReader:
        self._check_open()
        return GroupReader(
            self.bootstrap, self.options, group, topic, reset=reset, follow=follow, limit=limit, timeout_s=timeout_s
        )

    def sender(self) -> KafkaSender:
        sender = self._sender
        if sender is not None and not self._closed and self.problem is None:
            return sender
        with self._lock:
            self._check_open()
            if self._sender is None:
                configuration = producer_configuration(self.bootstrap, self.options)
                stalls = StallWatch(self.bootstrap, self.options)
                self._sender = KafkaSender(configuration, self.options.delivery_timeout_s, stalls)
            return self._sender

    @property
    def administration(self) -> TopicAdministration:
        """Administration of topics, including what only Kafka has."""
        with self._lock:
            self._check_open()
            if self._administration is None:
                admin = new_admin(self.bootstrap, self.options)
                self._administration = TopicAdministration(admin, security=Security(self.options.librdkafka))
            return self._administration

    def admin(self, timeout_s: float | None = None) -> TopicAdministration:
        administration = self.administration
        return administration if timeout_s is None else administration.within(timeout_s)

    def group_admin(self, timeout_s: float | None = None) -> GroupAdministration:
        return GroupAdministration(self.admin(timeout_s))

    def survey(self, timeout_s: float) -> KafkaSurvey:
        return KafkaSurvey(self.administration.admin, timeout_s)

    def record_times(self) -> KafkaRecordTimes:
        self._check_open()
        return KafkaRecordTimes(self.bootstrap, self.options)

    def transactional(
        self, transactional_id: str, *, timeout_s: float, transaction_timeout_s: float
    ) -> TransactionalProducer:
        return start_transactional(
            self.bootstrap,
            self.options,
            transactional_id,
            timeout_s=timeout_s,
            transaction_timeout_s=transaction_timeout_s,
        )

    def address_url(self) -> str:
        """The brokers. Settings of the environment do not apply to an embedded log."""
        return self.url if self._log_folder is None else f"kafka://{self.bootstrap}?{CONFIG}="

    def checkpoint_url(self, *, in_stream: bool) -> str:
        """SQLite in the folder of an embedded log, which all its clients share; else in the brokers."""
        if self._log_folder is not None and not in_stream:
            return f"sqlite:{self._log_folder / LOG_CHECKPOINTS}"
        return "kafka:"

    def keep(self, part: Closeable) -> None:
        """Close it with the stream, unless it was collected by then."""
        self._check_open()
        self._kept.add(part)

    def settle_sent(self) -> None:
        """Wait until every record that was sent is acknowledged or refused, at most `delivery_timeout_s`."""
        if self._sender is not None and not self._closed and self.problem is None:
            self._sender.wait_until_settled(self.options.delivery_timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.ExitStack() as stack:
            if self._keeper is not None:
                stack.callback(self._keeper.close)
            for part in list(self._kept):
                stack.callback(part.close)
            if self._sender is not None:
                stack.callback(self._sender.close, self.options.delivery_timeout_s if timeout_s is None else timeout_s)
        self._administration = None

    def check_reachable(self) -> None:
        """Check the brokers, unless they are an embedded log, which was found when it was opened."""
        if self._keeper is None:
            check_reachable(self._where, self.options)

    def check_there(self, timeout_s: float) -> None:
        check_there(self._where.hosts, timeout_s, is_plain=False)

    def check_usable(self) -> None:
        if self.problem is not None:
            raise BrokerUnavailableError(self.problem)

    @property
    def _where(self) -> KafkaUrl:
        where = kafka_url(f"kafka://{self.bootstrap}")
        assert where is not None
        return where

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        if self._sender is not None:
            self._sender.give_up(problem)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")
        self.check_usable()

    def __repr__(self) -> str:
        return f"<KafkaStream {self.url}{' (closed)' if self._closed else ''}>"


class KafkaTopicStream:
    """`abc.TopicStream`, `Feeding`, `Browsing` and `Grouping` for one topic. Thread-safe."""

    def __init__(self, stream: KafkaStream, topic: str) -> None:
        self._stream = stream
        self._topic = topic
        self._rereader = Rereader(topic, lambda: self.new_feed(_REREAD_AHEAD))
        self._has_appended = False
        self._closed = False

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def features(self) -> Features:
        return self._stream.features

    def partitions(self) -> Sequence[int]:
        return self.topics.partitions_of(self._topic)

    def locate(self, partition: int, position: Position) -> Pointer:
        topics = self.topics
        topics.require_partition(self._topic, partition)
        return topics.locate(self._topic, position, [partition])[partition]

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        topics = self.topics
        topics.require_partition(self._topic, partition)
        first = topics.earliest(self._topic, [partition])[partition]
        return first, max(first, topics.latest(self._topic, [partition])[partition])

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        """Records of one partition, as in `penstock.abc.TopicStream.read`. Fastest if each read continues where the
        last one ended.

        An empty batch means that the end of the partition was reached, however short `wait_s` is, unless the broker
        could not be reached.
        """
        self._check_open()
        return self._rereader.read(partition, start, limit, wait_s)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Send records, as in `penstock.abc.TopicStream.append`. The receipt of a record that cannot be sent has the
        error."""
        self._check_open()
        sender = self._stream.sender()
        self._has_appended = True
        topic = self._topic
        for record in records:
            if record.topic != topic:
                raise ConfigError(f"a record for topic {record.topic!r} cannot be appended to topic {topic!r}")
        return sender.send_all(records)

    def feed(self) -> KafkaFeed:
        self._check_open()
        return self.new_feed(None)

    def browse(self, partitions: Iterable[int], isolation: Isolation, fetch_wait_ms: int) -> KafkaFeed:
        settings = {
            **self._stream.options.librdkafka,
            **_BROWSE_SETTINGS,
            "isolation.level": f"read_{isolation}",
            "fetch.wait.max.ms": fetch_wait_ms,
        }
        options = dataclasses.replace(self._stream.options, librdkafka=settings)
        feed = KafkaFeed(self._stream.bootstrap, options, self._topic, self.topics, _BROWSE_AHEAD, partitions)
        self._stream.keep(feed)
        return feed

    def group_feed(
        self, group: str, listener: GroupListener, *, member: str, assignor: str, session_timeout_s: float
    ) -> KafkaGroupFeed:
        """Join a consumer group of the brokers. `KafkaGroupFeed` explains the arguments."""
        feed = KafkaGroupFeed(
            self._stream.bootstrap,
            self._stream.options,
            self._topic,
            self.topics,
            group,
            listener,
            member=member,
            assignor=assignor,
            session_timeout_s=session_timeout_s,
        )
        self._stream.keep(feed)
        return feed

    def close(self) -> None:
        """Close the topic, and settle what was appended to it. Feeds and the connection stay open."""
        if self._closed:
            return
        self._closed = True
        try:
            self._rereader.close()
        finally:
            if self._has_appended:
                self._stream.settle_sent()

    def new_feed(self, ahead: int | None, known: Iterable[int] = ()) -> KafkaFeed:
        """A feed that fetches `ahead` records of each partition ahead; None: many. `known` partitions exist."""
        feed = KafkaFeed(self._stream.bootstrap, self._stream.options, self._topic, self.topics, ahead, known)
        self._stream.keep(feed)
        return feed

    @property
    def topics(self) -> TopicAdministration:
        self._check_open()
        return self._stream.administration

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"topic {self._topic!r} is closed: open it again")


class KafkaReader(StreamReader):
    """Looks up the offsets of all partitions at once, and fetches no more ahead than the limit."""

    _opened: KafkaTopicStream

    def _find_range(self, start: Start, partitions: Sequence[int]) -> tuple[Offsets, Offsets]:
        topics = self._opened.topics
        ends = topics.latest(self._topic, partitions)
        if isinstance(start, Mapping):
            starts = {partition: start[partition] for partition in partitions}
        else:
            starts = topics.locate(self._topic, self._position, partitions)
        if self._position.kind is PositionKind.POINTER:
            first = topics.earliest(self._topic, partitions)
            for partition in partitions:
                self._check_range(partition, starts[partition], first[partition], ends[partition])
        return starts, ends

    def _new_feed(self) -> KafkaFeed:
        return self._opened.new_feed(self._left, self._ends)


def kafka_of(stream: Stream) -> KafkaStream:
    """The Kafka backend of a connection, for what only Kafka can do. Raises ConfigError for other streams."""
    found = capability(stream, KafkaStream)
    if found is None:
        raise ConfigError(f"{stream.url} does not speak Kafka's protocol: this needs a log: or kafka: URL")
    return found
