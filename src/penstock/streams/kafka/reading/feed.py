"""Reading a topic without a group: a feed of several partitions, and reads of single batches at any offset."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import TopicPartition

from penstock.errors import ConfigError
from penstock.model import Batch, Pointer
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.reading.batch import KafkaBatch
from penstock.streams.kafka.reading.polling import PolledFeed
from penstock.streams.kafka.settings import reader_configuration
from penstock.streams.options import Options

_MOST_FEEDS: Final = 8
"""How many partitions keep the feed of the last read. Each is a consumer with its own threads and sockets."""
_SIGHT_S: Final = 10.0
"""How long a read waits at least for a record or the end of the partition."""
_SLICE_S: Final = 0.02
"""How often a waiting read checks whether the end was seen."""


class KafkaFeed(PolledFeed):
    """`penstock.abc.Feed` by one librdkafka consumer without a group.

    Transaction markers and compacted records after the last record belong to its batch, or to an empty one at the end
    of the partition. While the broker is unavailable nothing comes; reading continues when it is back.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        topic: str,
        topics: TopicAdministration,
        ahead: int | None = None,
        known: Iterable[int] = (),
    ) -> None:
        """`ahead` limits how many records of a partition are prefetched; `known` are existing partitions."""
        super().__init__(reader_configuration(bootstrap, options, ahead), topic, topics)
        self._known: set[int] = set(known)

    def add(self, partition: int, start: Pointer) -> None:
        """Read this partition, too, as in `penstock.abc.Feed.add`. UnknownTopicError if it does not exist:
        librdkafka would wait for ever."""
        if partition not in self._known:
            self._topics.require_partition(self._topic, partition)
            self._known.add(partition)
        with self._lock, self._refusals(f"{self._topic}-{partition} cannot be read from offset {start}"):
            consumer = self._open_consumer()
            if partition in self._intake.readings:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                self._intake.remove(partition)
            consumer.incremental_assign([TopicPartition(self._topic, partition, start)])
            self._intake.add(partition, start)

    def remove(self, partition: int) -> None:
        with self._lock, self._refusals(f"{self._topic}-{partition} cannot be removed"):
            if partition in self._intake.readings:
                self._intake.remove(partition)
                self._open_consumer().incremental_unassign([TopicPartition(self._topic, partition)])

    def is_at_end(self, partition: int) -> bool:
        """Whether all records up to the last known end of the partition were returned."""
        reading = self._intake.readings.get(partition)
        return reading is not None and reading.end is not None and not reading.held

    def _move(self, partition: int, start: Pointer) -> None:
        self.add(partition, start)

    def _drop(self, partition: int) -> None:
        self.remove(partition)


class Rereader:
    """Reads batches of one topic at any offset, through feeds that stay where the last read ended.

    Reads of different partitions are concurrent.
    """

    def __init__(self, topic: str, new_feed: Callable[[], KafkaFeed]) -> None:
        self._topic = topic
        self._new_feed = new_feed
        self._lock = threading.Lock()
        self._feeds: OrderedDict[int, _PositionedFeed] = OrderedDict()

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if limit < 1:
            raise ConfigError(f"limit={limit} must be >= 1")
        while True:
            feed = self._feed_of(partition)
            with feed.lock:
                if not feed.let_go:  # else another thread has evicted it since
                    return feed.read(partition, start, limit, wait_s)

    def close(self) -> None:
        with self._lock:
            feeds, self._feeds = list(self._feeds.values()), OrderedDict()
        for feed in feeds:
            feed.close()

    def _feed_of(self, partition: int) -> _PositionedFeed:
        surplus = None
        with self._lock:
            feed = self._feeds.get(partition)
            if feed is None:
                if len(self._feeds) >= _MOST_FEEDS:
                    _, surplus = self._feeds.popitem(last=False)
                feed = self._feeds[partition] = _PositionedFeed(self._topic, self._new_feed)
            self._feeds.move_to_end(partition)
        if surplus is not None:
            surplus.close()
        return feed


class _PositionedFeed:
    """The feed of one partition, and its position."""

    def __init__(self, topic: str, new_feed: Callable[[], KafkaFeed]) -> None:
        self.lock = threading.Lock()
        self.let_go = False
        self._topic = topic
        self._new_feed = new_feed
        self._feed: KafkaFeed | None = None
        self._next: Pointer | None = None

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if self._feed is None:
            self._feed = self._new_feed()
        if self._next != start:
            self._next = None  # also if what follows fails
            self._feed.add(partition, start)
        self._next, next = None, start
        begun_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begun_s
            sight_s = 0.0 if self._feed.is_at_end(partition) else _SIGHT_S
            left_s = max(wait_s, sight_s) - waited_s
            for batch in self._feed.poll(limit, max(0.0, min(left_s, _SLICE_S))):
                next = batch.next
                if batch:
                    assert isinstance(batch, KafkaBatch)
                    self._next = next
                    return batch.starting_at(start)
            if left_s <= 0:
                self._next = next
                return KafkaBatch(self._topic, partition, start, next)

    def close(self) -> None:
        """Close the feed. A waiting read ends with ConnectionClosedError."""
        self.let_go = True
        feed = self._feed
        if feed is not None:
            feed.close()
        with self.lock:
            if self._feed is not None:
                self._feed.close()
