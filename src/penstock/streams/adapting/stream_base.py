"""What streams of other systems and their topics have in common: positions, limits, partitions, being closed."""

from __future__ import annotations

import abc
import zlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

from penstock.abc import Feature, Features
from penstock.errors import ConfigError, ConnectionClosedError, StreamError
from penstock.model import NewRecord, Pointer, Position, PositionKind, Receipt, check_topic_name
from penstock.streams.adapting.servers import check_accepts
from penstock.streams.backend_url import BackendUrl

PARTITIONED_LOG: Final[Features] = frozenset(
    {
        Feature.PARTITIONS,
        Feature.CHOSEN_PARTITION,
        Feature.KEYS,
        Feature.HEADERS,
        Feature.TIMES,
        Feature.DURABLE,
    }
)
"""What a server that keeps records in partitions has at least."""


class Client(Protocol):
    """The connections of a stream."""

    @property
    def where(self) -> str: ...

    def close(self) -> None: ...


class ServerStream:
    """A part of `abc.Stream` and `abc.Reachable`: a stream at hosts, whose client replaces broken connections."""

    features: Features
    problem: str | None = None
    _client: Client

    def __init__(self, url: BackendUrl, client: Client, default_partitions: int) -> None:
        """`default_partitions` is for topics that are created without a number of partitions."""
        self.url = url.shown
        self._hosts = url.hosts
        self._client = client
        self._default_partitions = default_partitions

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        check_topic_name(topic)
        self._create(topic, checked_partitions(partitions, self._default_partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        check_topic_name(topic)
        self._delete(topic)

    def check_there(self, timeout_s: float) -> None:
        check_accepts(self._hosts, timeout_s, self._client.where)

    def check_usable(self) -> None:
        """Nothing to check: broken connections are replaced."""

    def close(self) -> None:
        self._client.close()

    def _create(self, topic: str, partitions: int) -> None:
        """Create the topic at the server. TopicExistsError if it exists."""
        raise NotImplementedError

    def _delete(self, topic: str) -> None:
        """Delete the topic at the server. UnknownTopicError if it does not exist."""
        raise NotImplementedError


class TopicBase(abc.ABC):
    """A part of `abc.TopicStream`: positions, and being closed."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._is_closed = False

    @abc.abstractmethod
    def span(self, partition: int) -> tuple[Pointer, Pointer]: ...

    def locate(self, partition: int, position: Position) -> Pointer:
        match position.kind:
            case PositionKind.EARLIEST:
                return self.span(partition)[0]
            case PositionKind.LATEST:
                return self.span(partition)[1]
            case PositionKind.POINTER:
                self.span(partition)  # UnknownTopicError if there is no such partition
                return self._pointer_of(position.pointer)
            case PositionKind.TIME:
                return self._at_time(partition, position.time_ms)

    @abc.abstractmethod
    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        """The first record of this time or later, or the end."""

    def _pointer_of(self, text: str) -> Pointer:
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a pointer here: they are integers") from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the stream of topic {self.topic!r} is closed: open it again")


def check_limit(limit: int) -> None:
    """Raise StreamError unless `limit` is valid for `abc.TopicStream.read`."""
    if limit < 1:
        raise StreamError(f"limit={limit} must be an integer >= 1")


def checked_partitions(given: Any, default: int) -> int:
    """The number of partitions of a new topic; None: the default."""
    count = default if given is None else given
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"partitions={given!r} must be an integer >= 1")
    return count


def chosen_partition(record: NewRecord, turn: int, count: int) -> int:
    """The record's own, else that of its key, else round-robin."""
    if record.partition is not None:
        return record.partition
    return turn % count if record.key is None else zlib.crc32(record.key) % count


def receipts_for(topic: str, records: Sequence[NewRecord]) -> list[Receipt]:
    """A receipt for each record. ConfigError if one is for another topic."""
    for record in records:
        if record.topic != topic:
            raise ConfigError(f"a record for topic {record.topic!r} was appended to topic {topic!r}")
    return [Receipt(topic) for _ in records]
