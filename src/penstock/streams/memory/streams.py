"""A stream in memory: its backend, and a connection that can also provoke what is rare elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Self

from penstock.abc import Clock, Features
from penstock.errors import ConfigError, ConnectionClosedError
from penstock.model import Pointer, check_topic_name
from penstock.streams.connection import Connection
from penstock.streams.memory.stream import FEATURES, MemoryTopicStream
from penstock.streams.memory.topics import Topics, topics_named
from penstock.streams.options import Options, options_of
from penstock.streams.url import MemoryUrl, parse_url

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
