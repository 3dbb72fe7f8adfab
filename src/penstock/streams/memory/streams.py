"""A stream in memory: its backend, and a connection that can also provoke what is rare elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from penstock.abc import Clock, Feature, Features
from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError
from penstock.model import Batch, NewRecord, Pointer, Receipt, check_topic_name
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, TopicBase, check_limit, receipts_for
from penstock.streams.connection import Connection
from penstock.streams.memory.topics import Topic, Topics, topics_named
from penstock.streams.options import Options, options_of
from penstock.streams.url import MemoryUrl, parse_url


class MemoryFeed:
    """`abc.Feed` that waits for all of its partitions at once, and serves them in turns."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._next: dict[int, Pointer] = {}
        """Where each partition continues, in the order of their turns."""
        self._paused: set[int] = set()
        self._woken = False
        self._closed = False

    def add(self, partition: int, start: Pointer) -> None:
        with self._topic.changed:
            self._check_open()
            self._topic.partition(partition)
            self._next[partition] = start

    def remove(self, partition: int) -> None:
        with self._topic.changed:
            self._next.pop(partition, None)
            self._paused.discard(partition)

    def pause(self, partition: int) -> None:
        with self._topic.changed:
            self._check_open()
            self._paused.add(partition)

    def resume(self, partition: int) -> None:
        with self._topic.changed:
            self._check_open()
            self._paused.discard(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        check_limit(limit)
        until_s = self._topic.clock.monotonic_s() + wait_s
        with self._topic.changed:
            while True:  # ends at the deadline, when `wait` returns False
                self._check_open()
                self._check_ranges()
                batches = self._take(limit)
                if batches:
                    return batches
                if self._woken or not self._topic.wait(until_s):
                    self._woken = False
                    return ()

    def wake(self) -> None:
        with self._topic.changed:
            self._woken = True
            self._topic.changed.notify_all()

    def close(self) -> None:
        with self._topic.changed:
            self._closed = True
            self._topic.changed.notify_all()

    def _check_ranges(self) -> None:
        """Check all before taking any, so that the error loses no records of other partitions."""
        for partition, start in self._next.items():
            if partition in self._paused:
                continue
            try:
                self._topic.check_in_range(partition, start)
            except OffsetOutOfRangeError:
                self.remove(partition)
                raise

    def _take(self, limit: int) -> list[Batch]:
        """Take batches, empty ones too if there are only pointers without records."""
        batches = []
        for partition in list(self._next):
            if partition in self._paused:
                continue
            start = self._next[partition]
            batch = self._topic.batch(partition, start, limit)
            if batch.next == start:
                continue
            del self._next[partition]
            self._next[partition] = batch.next
            batches.append(batch)
            limit -= len(batch)
            if limit == 0:
                break
        return batches

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the feed of topic {self._topic.name!r} is closed")


FEATURES: Final[Features] = PARTITIONED_LOG - {Feature.DURABLE} | {Feature.OFFSETS, Feature.IDEMPOTENCE}
"""Without a network, no acknowledgement can be lost, so every record is stored once."""


class MemoryTopicStream(TopicBase):
    """`abc.TopicStream` in memory. The topic is looked up at each use, so it need not exist before."""

    def __init__(self, topic: str, topics: Topics) -> None:
        super().__init__(topic)
        self._topics = topics

    @property
    def features(self) -> Features:
        return FEATURES

    def partitions(self) -> Sequence[int]:
        return range(self._there().partition_count)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return self._there().span(partition)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        topic = self._there()
        until_s = topic.clock.monotonic_s() + wait_s
        with topic.changed:
            while True:  # ends at the deadline, when `wait` returns False
                self._check_open()
                topic.check_in_range(partition, start)
                batch = topic.batch(partition, start, limit)
                if batch.records or not topic.wait(until_s):
                    return batch

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Store the records, and settle all receipts."""
        self._check_open()
        receipts = receipts_for(self.topic, records)
        while receipts and not self._topics.find_or_create(self.topic).append(records, receipts):
            pass  # the topic was deleted since: create it again
        return receipts

    def feed(self) -> MemoryFeed:
        return MemoryFeed(self._there())

    def close(self) -> None:
        """Close it. A waiting `read` raises ConnectionClosedError."""
        self._is_closed = True
        topic = self._topics.get(self.topic)
        if topic is not None:
            topic.wake()

    def _there(self) -> Topic:
        self._check_open()
        return self._topics.find(self.topic)

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        return self._there().at_time(partition, time_ms)

    def _pointer_of(self, text: str) -> Pointer:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a pointer of a stream in memory: pass an integer") from None

    def __repr__(self) -> str:
        return f"<MemoryStream {self.topic!r}{' (closed)' if self._is_closed else ''}>"


_DEFAULTS: Final = Options()


class MemoryBackend:
    """`abc.Stream` over topics in memory, which outlive it."""

    def __init__(self, topics: Topics, url: str = "memory:") -> None:
        self.url = url
        self._topics = topics
        self._closed = False

    @property
    def features(self) -> Features:
        return FEATURES

    def open_topic(self, topic: str) -> MemoryTopicStream:
        self._check_open()
        check_topic_name(topic)
        return MemoryTopicStream(topic, self._topics)

    def topics(self) -> list[str]:
        self._check_open()
        return self._topics.names()

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._check_open()
        self._topics.create(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._check_open()
        check_topic_name(topic)
        self._topics.delete(topic)

    def checkpoint_url(self, *, in_stream: bool) -> str:
        """Checkpoints are in memory, as the records are."""
        return "memory:"

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")


class MemoryStream(Connection):
    """A connection to topics in memory, for tests. Thread-safe.

    `MemoryStream()` has its own records; `MemoryStream.named("x")` has those of the URL `memory:x`, which outlive it.
    Timestamps and timeouts use the `clock`.
    """

    def __init__(self, partitions: int = 1, clock: Clock | None = None) -> None:
        self._use(Topics(partitions, clock), "memory:")

    @classmethod
    def named(cls, name: str) -> Self:
        """The records of `memory:NAME`."""
        stream = cls()
        stream._use(topics_named(name), f"memory:{name}")
        return stream

    def _use(self, topics: Topics, url: str) -> None:
        self._topics = topics
        super().__init__(MemoryBackend(topics, url), clock=topics.clock)

    def open_topic(self, topic: str) -> MemoryTopicStream:
        self.check_usable()
        check_topic_name(topic)
        return MemoryTopicStream(topic, self._topics)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions. As in Kafka, keys may move to other partitions."""
        self.check_usable()
        self._topics.find(topic).add_partitions(total)

    def expire(self, topic: str, partition: int, before: Pointer) -> None:
        """Remove the records before this pointer, as retention does. Reading there raises OffsetOutOfRangeError."""
        self.check_usable()
        self._topics.find(topic).expire(partition, before)

    def skip(self, topic: str, partition: int, count: int = 1) -> None:
        """Leave pointers at the end without records, as compaction and transaction markers do."""
        self.check_usable()
        self._topics.find(topic).skip(partition, count)


def open_memory(url: str, given: Mapping[str, Any]) -> MemoryBackend:
    """Open a `memory:` URL. Of the options, it accepts only a client id."""
    where = parse_url(url)
    assert isinstance(where, MemoryUrl)
    options = options_of(given)
    for name in (field.name for field in dataclasses.fields(Options) if field.name != "client_id"):
        if getattr(options, name) != getattr(_DEFAULTS, name):
            raise ConfigError(f"{name} means nothing to {url}: omit it, or choose a log: or kafka: URL")
    if given.get("exit_when_idle_s") is not None:
        raise ConfigError(f"exit_when_idle_s is for log: URLs; {url} has no broker that could end")
    return MemoryBackend(topics_named(where.name), url)
