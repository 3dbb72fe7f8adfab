"""All topics of one memory, by name, and the memories of this process, by theirs."""

from __future__ import annotations

import threading
from typing import Final

from penstock.abc import Clock
from penstock.errors import ConfigError, TopicExistsError, UnknownTopicError
from penstock.log.store import check_topic_name
from penstock.model.clock import SystemClock
from penstock.streams.memory.topic import Topic


class Topics:
    """The records that several `MemoryStreams` may share."""

    def __init__(self, partitions: int = 1, clock: Clock | None = None) -> None:
        _check_count(partitions)
        self.partitions = partitions
        """How many partitions a topic has that is created without saying it."""
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r} in memory; it is created when a record is sent to it")
        return topic

    def find_or_create(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_topic_name(name)
        with self._lock:
            return self._topics.setdefault(name, Topic(name, self.partitions, self.clock))

    def create(self, name: str, partitions: int | None) -> None:
        check_topic_name(name)
        if partitions is not None:
            _check_count(partitions)
        with self._lock:
            if name in self._topics:
                raise TopicExistsError(f"topic {name!r} exists already")
            self._topics[name] = Topic(name, partitions or self.partitions, self.clock)

    def delete(self, name: str) -> None:
        with self._lock:
            topic = self._topics.pop(name, None)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r} in memory")
        topic.delete()


def _check_count(partitions: int) -> None:
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise ConfigError(f"a topic has at least one partition, not {partitions!r}")


_named: Final[dict[str, Topics]] = {}
_naming: Final = threading.Lock()


def topics_named(name: str) -> Topics:
    """The memory of this name: one for the whole process, for as long as it runs."""
    with _naming:
        return _named.setdefault(name, Topics())
