"""Topics: one of them with its settings and readers; and making, changing and removing them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from penstock.console.link import Link
from penstock.console.views import TopicDetail
from penstock.errors import BrokerUnavailableError, ConfigError, InvalidTopicError, PenstockError, UnknownTopicError
from penstock.observe.facts import Snapshot
from penstock.streams.kafka.topics import ConfigValue


class Topics:
    """What the console does with topics. Any thread may use it."""

    def __init__(self, link: Link, snapshot: Callable[[], Snapshot], look_now: Callable[[], Snapshot]) -> None:
        self._link = link
        self._snapshot = snapshot
        self._look_now = look_now
        self._lock = threading.Lock()
        self._configs: dict[str, tuple[ConfigValue, ...]] = {}

    def detail(self, name: str) -> TopicDetail:
        """A topic; what was last known of it, with why, when the broker cannot be asked."""
        snapshot = self._snapshot()
        if name not in snapshot.topics:
            snapshot = self._look_now()  # it may have been made a moment ago
        facts = snapshot.topics.get(name)
        if facts is None:
            if snapshot.problem is not None:
                raise BrokerUnavailableError(snapshot.problem)
            raise UnknownTopicError(f"there is no topic {name!r}")
        problem = snapshot.problem
        try:
            config = tuple(self._link.topics().config(name))
            with self._lock:
                self._configs[name] = config
        except UnknownTopicError:
            raise
        except PenstockError as error:
            problem = str(error)
            with self._lock:
                config = self._configs.get(name, ())
        readers = [each for each in snapshot.groups.values() if any(reader.topic == name for reader in each.readers)]
        return TopicDetail(facts, config, tuple(readers), problem)

    def create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        if partitions is not None and partitions < 1:
            raise ConfigError(f"a topic has at least one partition, not {partitions}")
        self._link.topics().create(name, partitions, config)

    def alter(self, name: str, changes: Mapping[str, str | None], partitions: int | None) -> None:
        if not changes and partitions is None:
            raise ConfigError(f"nothing was said that should change about topic {name!r}")
        topics = self._link.topics()
        there = topics.partitions_of(name)
        if partitions is not None and partitions < len(there):
            raise ConfigError(f"topic {name!r} has {len(there)} partitions: it can be given more, but not fewer")
        if changes:
            topics.change_config(name, changes)
        if partitions is not None and partitions > len(there):
            topics.add_partitions(name, partitions)

    def delete(self, name: str) -> None:
        if name.startswith("__"):
            raise InvalidTopicError(f"topic {name!r} belongs to the broker itself, which would be lost without it")
        self._link.topics().delete(name)
