"""One topic in memory, as `abc.Stream`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.abc import Feature, Features
from penstock.errors import ConfigError, ConnectionClosedError
from penstock.model import Batch, NewRecord, Pointer, Position, Receipt
from penstock.streams.memory.feed import MemoryFeed
from penstock.streams.memory.topic import Topic, check_limit
from penstock.streams.memory.topics import Topics

FEATURES: Final[Features] = frozenset(
    {Feature.PARTITIONS, Feature.CHOSEN_PARTITION, Feature.KEYS, Feature.HEADERS, Feature.TIMES, Feature.IDEMPOTENCE}
)
"""A record is stored once, as there is no wire on which an answer could be lost. No process competes for anything, and
nothing outlives this one."""


class MemoryStream:
    """`abc.Stream` on a topic of `MemoryStreams`. The topic is looked up when it is used: it need not exist before."""

    def __init__(self, topic: str, topics: Topics) -> None:
        self._name = topic
        self._topics = topics
        self._closed = False

    @property
    def topic(self) -> str:
        return self._name

    @property
    def features(self) -> Features:
        return FEATURES

    def partitions(self) -> Sequence[int]:
        return range(self._there().partition_count)

    def locate(self, partition: int, position: Position) -> Pointer:
        return self._there().locate(partition, position)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return self._there().span(partition)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        topic = self._there()
        until_s = topic.clock.monotonic_s() + wait_s
        with topic.changed:
            while True:  # ends: `wait` is False once the time has come
                self._check_open()
                topic.check_in_range(partition, start)
                batch = topic.batch(partition, start, limit)
                if batch.records or not topic.wait(until_s):
                    return batch

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Everything is stored, and every receipt settled, when this returns."""
        self._check_open()
        for record in records:
            if record.topic != self._name:
                raise ConfigError(f"a record for topic {record.topic!r} was appended to topic {self._name!r}")
        receipts = [Receipt(self._name) for _ in records]
        while receipts and not self._topics.find_or_create(self._name).append(records, receipts):
            pass  # it was deleted since it was found: the next one is a new one
        return receipts

    def feed(self) -> MemoryFeed:
        return MemoryFeed(self._there())

    def close(self) -> None:
        """Who waits in `read` stops waiting, with a ConnectionClosedError."""
        self._closed = True
        topic = self._topics.get(self._name)
        if topic is not None:
            topic.wake()

    def _there(self) -> Topic:
        self._check_open()
        return self._topics.find(self._name)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the stream of topic {self._name!r} is closed: open it again")

    def __repr__(self) -> str:
        return f"<MemoryStream {self._name!r}{' (closed)' if self._closed else ''}>"
