"""A system of streams in memory: `abc.Streams`, with the methods of a connection."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from penstock.abc import Clock, Features
from penstock.errors import ConnectionClosedError
from penstock.model import NewRecord, Pointer, Receipt
from penstock.model.observing import OBSERVED, send_traced
from penstock.serde import Topic, new_record
from penstock.streams.memory.reading import MemoryReader, Start
from penstock.streams.memory.stream import FEATURES, MemoryStream
from penstock.streams.memory.topics import Topics, topics_named


class MemoryStreams:
    """Topics in the memory of this process. Any thread may use it.

    `MemoryStreams()` has records of its own; `MemoryStreams.named("x")` those of the URL `memory:x`, which stay when it
    is closed. On a clock given here, records get their timestamps and waiting readers their time limits.
    """

    def __init__(self, partitions: int = 1, clock: Clock | None = None) -> None:
        self._topics = Topics(partitions, clock)
        self._closed = False
        self.url = "memory:"

    @classmethod
    def named(cls, name: str) -> Self:
        """The memory that everybody in this process gets by this name."""
        streams = cls()
        streams._topics = topics_named(name)
        streams.url = f"memory:{name}"
        return streams

    @property
    def features(self) -> Features:
        return FEATURES

    def stream(self, topic: str) -> MemoryStream:
        self._check_open()
        return MemoryStream(topic, self._topics)

    def topics(self) -> list[str]:
        self._check_open()
        return self._topics.names()

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Create a topic; without `partitions` it has as many as the memory gives by default."""
        self._check_open()
        self._topics.create(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        self._check_open()
        self._topics.delete(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions. As in Kafka, keys may have another one from then on."""
        self._check_open()
        self._topics.find(topic).add_partitions(total)

    def expire(self, topic: str, partition: int, before: Pointer) -> None:
        """Remove the records before this pointer, as retention does. Who reads there gets OffsetOutOfRangeError."""
        self._check_open()
        self._topics.find(topic).expire(partition, before)

    def skip(self, topic: str, partition: int, count: int = 1) -> None:
        """Leave pointers at the end without a record, as compaction and the markers of transactions do."""
        self._check_open()
        self._topics.find(topic).skip(partition, count)

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
        """Send a record, as `Connection.send` does. It is stored when this returns, or its receipt says why not."""
        self._check_open()
        record = new_record(topic, value, key, headers, timestamp, partition)
        if OBSERVED.tracer is not None:
            return send_traced(OBSERVED.tracer, record, self._append)
        return self._append(record)

    def _append(self, record: NewRecord) -> Receipt:
        [receipt] = MemoryStream(record.topic, self._topics).append([record])
        return receipt

    def flush(self, timeout: float | None = None) -> None:
        """Everything that was sent is stored already."""
        self._check_open()

    @property
    def unacknowledged(self) -> int:
        return 0

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
        partitions: Iterable[int] | None = None,
    ) -> MemoryReader:
        """Read records again, without a group, as `Connection.read` does."""
        self._check_open()
        return MemoryReader(MemoryStream(topic, self._topics), start, follow, limit, timeout, partitions)

    def close(self, timeout: float | None = None) -> None:
        """It cannot be used any more. The records of a named memory stay."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")

    def __repr__(self) -> str:
        return f"<MemoryStreams {self.url}{' (closed)' if self._closed else ''}>"
