"""A topic as the driver sees it: its partitions, and what can be read in each of them now.

The ends are those that the stream tells: behind the last record that is safe and decided. Tasks never read further,
whatever they find in files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.abc import Stream, Streams
from penstock.broker import last_address
from penstock.model import Position
from penstock.spark.source.origin import LogFolder, Origin
from penstock.spark.source.positions import Pointers
from penstock.streams.connecting import open_streams
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.topics import ANSWER_TIMEOUT_S, TopicAdministration, look_up
from penstock.streams.url import CONFIG, LogUrl, parse_url

LOOK_FOR_PARTITIONS_S: Final = 1.0
"""New partitions are noticed within this time."""


@dataclass(frozen=True, slots=True)
class Described:
    partitions: tuple[int, ...]
    topic_id: str | None
    """Tells the topic from another one of its name, where the stream has such a thing."""


class TopicView(Protocol):
    """Asks the stream; nothing is kept between two questions. Used by one thread."""

    def describe(self) -> Described:
        """Raises UnknownTopicError."""

    def starts(self, partitions: Iterable[int]) -> Pointers:
        """The earliest pointer of each."""

    def ends(self, partitions: Iterable[int]) -> Pointers:
        """The place behind the last record that can be read, of each."""

    def locate(self, position: Position, partitions: Iterable[int]) -> Pointers: ...

    def first_pointer(self, partition: int) -> int:
        """Where a partition that is new begins, whether or not its first records are still there."""

    def origin(self) -> Origin:
        """Where tasks find the records."""

    def close(self) -> None: ...


def open_topic(url: str, topic: str, client: Mapping[str, Any]) -> TopicView:
    """Connect. `client` are options of `penstock.connect`, and what that raises is raised."""
    streams = open_streams(url, **client)
    origin = Origin(url, topic, client)
    return _KafkaTopic(streams, origin) if isinstance(streams, Connection) else _AnyTopic(streams, origin)


class _KafkaTopic:
    """A topic of Kafka or of the embedded log: all partitions in one request."""

    def __init__(self, connection: Connection, asked: Origin) -> None:
        self._connection = connection
        self._topic = asked.topic
        self._asked = asked

    def describe(self) -> Described:
        topics = self._topics
        found: Any = look_up(
            f"topic {self._topic!r} could not be looked up",
            lambda: topics.ask_for(self._topic).result(ANSWER_TIMEOUT_S),
        )
        partitions = tuple(sorted(partition.id for partition in found.partitions))
        return Described(partitions, str(found.topic_id) if found.topic_id is not None else None)

    def starts(self, partitions: Iterable[int]) -> Pointers:
        return self._topics.earliest(self._topic, partitions)

    def ends(self, partitions: Iterable[int]) -> Pointers:
        return self._topics.latest(self._topic, partitions)

    def locate(self, position: Position, partitions: Iterable[int]) -> Pointers:
        return self._topics.locate(self._topic, position, partitions)

    def first_pointer(self, partition: int) -> int:
        return 0

    def origin(self) -> Origin:
        where = parse_url(self._asked.url)
        if not isinstance(where, LogUrl):
            return self._asked
        client = {name: value for name, value in self._asked.client.items() if name != "exit_when_idle_s"}
        # The settings of the environment are for brokers elsewhere.
        url = f"kafka://{self._connection.bootstrap}?{CONFIG}="
        return Origin(url, self._topic, client, _log_folder(where.folder))

    def close(self) -> None:
        self._connection.close()

    @property
    def _topics(self) -> TopicAdministration:
        return self._connection.administration


class _AnyTopic:
    """A topic of any stream, by the methods that all have."""

    def __init__(self, streams: Streams, asked: Origin) -> None:
        self._streams = streams
        self._stream: Stream = streams.stream(asked.topic)
        self._asked = asked

    def describe(self) -> Described:
        return Described(tuple(self._stream.partitions()), None)

    def starts(self, partitions: Iterable[int]) -> Pointers:
        return {partition: self._stream.span(partition)[0] for partition in partitions}

    def ends(self, partitions: Iterable[int]) -> Pointers:
        return {partition: self._stream.span(partition)[1] for partition in partitions}

    def locate(self, position: Position, partitions: Iterable[int]) -> Pointers:
        return {partition: self._stream.locate(partition, position) for partition in partitions}

    def first_pointer(self, partition: int) -> int:
        return self._stream.span(partition)[0]

    def origin(self) -> Origin:
        return self._asked

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._streams.close()


class Partitions:
    """Which partitions there are, asked again at most so often."""

    def __init__(self, view: TopicView) -> None:
        self._view = view
        self._found: Described | None = None
        self._asked_s = 0.0

    def now(self, *, fresh: bool = False) -> Described:
        if fresh or self._found is None or time.monotonic() - self._asked_s >= LOOK_FOR_PARTITIONS_S:
            self._found = self._view.describe()
            self._asked_s = time.monotonic()
        return self._found


def _log_folder(folder: Path) -> LogFolder | None:
    address = last_address(folder)
    return None if address is None else LogFolder(str(folder), address.cluster_id)
