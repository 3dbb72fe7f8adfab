"""What `connect("memory:NAME")` gives: a Connection like any other, whose records are in this process."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.abc import Features
from penstock.errors import ConfigError
from penstock.model import Receipt, Record
from penstock.serde import Topic
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.reading import Reader
from penstock.streams.kafka.sending import Sender
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.memory.reading import MemoryReader, Start
from penstock.streams.memory.stream import MemoryStream
from penstock.streams.memory.streams import MemoryStreams
from penstock.streams.options import Options


class MemoryConnection(Connection):
    """Programs written for a Connection take it as it is. What only a broker can do is refused."""

    def __init__(self, name: str, options: Options) -> None:
        self._streams = MemoryStreams.named(name)
        super().__init__(self._streams.url, "", options)

    @property
    def features(self) -> Features:
        return self._streams.features

    def stream(self, topic: str) -> MemoryStream:  # type: ignore[override]  # another `abc.Stream`, and not Kafka's
        self._check_usable()
        return self._streams.stream(topic)

    def send(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        *,
        headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        self._check_usable()
        return self._streams.send(topic, value, key, headers=headers, timestamp=timestamp, partition=partition)

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
        partitions: Iterable[int] | None = None,
    ) -> Reader:
        self._check_usable()
        reader = _MemoryReader(
            self._streams.read(topic, start, follow=follow, limit=limit, timeout=timeout, partitions=partitions)
        )
        self.keep(reader)
        return reader

    def topics(self) -> list[str]:
        self._check_usable()
        return self._streams.topics()

    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        self._check_usable()
        if config:
            raise ConfigError(f"{min(config)} means nothing to {self.url}: topics in memory have no settings")
        self._streams.create_topic(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._check_usable()
        self._streams.delete_topic(topic)

    @property
    def administration(self) -> TopicAdministration:
        raise self._no_broker()

    @property
    def sender(self) -> Sender:
        raise self._no_broker()

    def _no_broker(self) -> ConfigError:
        return ConfigError(f"{self.url} has no broker that could do this: choose a log: or kafka: URL")


class _MemoryReader(Reader):
    """A MemoryReader in the place of one that reads from a broker."""

    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader

    def __next__(self) -> Record:
        return next(self._reader)

    @property
    def ready(self) -> int:
        return self._reader.ready

    def close(self) -> None:
        self._reader.close()
