"""Topics as streams of RabbitMQ: their partitions, and what these hold.

Topic `orders` is the stream `orders`, or the super stream `orders` with a stream for each partition: `orders-0`,
`orders-1`, ..., or whatever names another program gave them. The server knows their order.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.errors import (
    ConfigError,
    InvalidTopicError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.model import Pointer
from penstock.streams.rabbitmq.client import StreamClient
from penstock.streams.rabbitmq.connection import Mailbox, StreamConnection
from penstock.streams.rabbitmq.protocol import (
    Code,
    Command,
    OffsetKind,
    OffsetSpec,
    RequestRefusedError,
    StoredChunk,
    properties,
    text,
    texts,
)
from penstock.streams.rabbitmq.settings import RabbitMqSettings

_SUPER_STREAMS: Final = (3, 13)
"""The version of RabbitMQ that lets clients create them."""


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The offsets of a partition at one moment."""

    first: Pointer
    """What is before it was removed."""
    end: Pointer
    last: StoredChunk | None
    """The last chunk with messages, if there is one."""


class StreamTopic:
    """The streams of a topic."""

    def __init__(self, topic: str, client: StreamClient, settings: RabbitMqSettings) -> None:
        self.topic = topic
        self._client = client
        self._settings = settings

    def layout(self) -> tuple[str, ...] | None:
        """The streams of the partitions; None if there is no such topic."""
        connection = self._client.connection()
        try:
            streams = connection.request(Command.PARTITIONS, f"to find topic {self.topic!r}", text(self.topic)).texts()
        except RequestRefusedError as error:
            if error.code != Code.STREAM_DOES_NOT_EXIST:
                raise self._client.refusal(error) from error
            streams = []
        if streams:
            return tuple(streams)
        try:
            connection.leader(self.topic)
        except UnknownTopicError:
            return None
        return (self.topic,)

    def required(self) -> tuple[str, ...]:
        """Like `layout`, but raise UnknownTopicError if there is none."""
        streams = self.layout()
        if streams is None:
            raise self.unknown()
        return streams

    def provided(self) -> tuple[str, ...]:
        """Like `layout`, but create the topic if it does not exist."""
        streams = self.layout()
        if streams is not None:
            return streams
        with contextlib.suppress(TopicExistsError):  # somebody else was quicker
            self.create(self._settings.partitions)
        return self.required()

    def create(self, partitions: int) -> None:
        if self.layout() is not None:
            raise self._exists()
        what = f"to create topic {self.topic!r}"
        try:
            if partitions == 1:
                self._client.request(Command.CREATE, what, text(self.topic), properties(self._arguments()))
                return
            version = self._client.version()
            if version < _SUPER_STREAMS:
                raise ConfigError(
                    f"{self._client.where} has version {'.'.join(map(str, version))}: it cannot create topics with "
                    f"several partitions, for which RabbitMQ {'.'.join(map(str, _SUPER_STREAMS))} is needed"
                )
            numbers = [str(number) for number in range(partitions)]
            self._client.request(
                Command.CREATE_SUPER_STREAM,
                what,
                text(self.topic),
                texts([f"{self.topic}-{number}" for number in numbers]),
                texts(numbers),
                properties(self._arguments()),
            )
        except RequestRefusedError as error:
            if error.code == Code.STREAM_ALREADY_EXISTS or self.layout() is not None:
                raise self._exists() from error
            if error.code == Code.PRECONDITION_FAILED:
                raise InvalidTopicError(
                    f"{error}. The name may be taken by a queue, or it does not allow a setting for new topics"
                ) from error
            raise self._client.refusal(error) from error

    def delete(self) -> None:
        streams = self.required()
        command = Command.DELETE if streams == (self.topic,) else Command.DELETE_SUPER_STREAM
        try:
            self._client.request(command, f"to delete topic {self.topic!r}", text(self.topic))
        except RequestRefusedError as error:
            if error.code == Code.STREAM_DOES_NOT_EXIST:
                raise self.unknown() from error
            raise self._client.refusal(error) from error

    def state(self, stream: str) -> StreamSpan:
        """The offsets of a partition."""
        with self.translating():
            connection = self._client.connection_for(stream, at_leader=True)
            first, last = self._chunk_ids(connection, stream)
            if first < 0:
                return StreamSpan(0, 0, None)
            chunk = self.first_chunk(connection, stream, OffsetSpec(OffsetKind.LAST))
            if chunk is None:  # there are none but RabbitMQ's own notes
                return StreamSpan(first, last + 1, None)
            return StreamSpan(first, max(chunk.end, first), chunk)

    def first(self, stream: str) -> Pointer:
        """The first pointer that was not removed."""
        with self.translating():
            return max(0, self._chunk_ids(self._client.connection_for(stream, at_leader=True), stream)[0])

    def at_time(self, stream: str, time_ms: int) -> Pointer:
        """The first record that was stored at this time or later; the end if there is none."""
        state = self.state(stream)
        if state.last is None or state.last.time_ms < time_ms:
            return state.end
        with self.translating():
            connection = self._client.connection_for(stream, at_leader=True)
            start = OffsetSpec(OffsetKind.TIMESTAMP, max(0, time_ms))
            chunk = self.first_chunk(connection, stream, start, from_ms=time_ms)
            return chunk.first if chunk is not None else state.end

    def first_chunk(
        self, connection: StreamConnection, stream: str, start: OffsetSpec, from_ms: int = 0
    ) -> StoredChunk | None:
        """The first chunk from here on that was stored at `from_ms` or later; None if none comes in time."""
        mailbox = Mailbox(stream)
        id = connection.subscribe(stream, start, 1, mailbox)
        try:
            while (chunk := mailbox.take(self._settings.timeout_s)) is not None and chunk.time_ms < from_ms:
                connection.give_credit(id, 1)
            return chunk
        finally:
            connection.unsubscribe(id, mailbox)

    def unknown(self, partition: int | None = None) -> UnknownTopicError:
        if partition is not None:
            return UnknownTopicError(f"topic {self.topic!r} in {self._client.where} has no partition {partition}")
        return UnknownTopicError(
            f"there is no topic {self.topic!r} in {self._client.where}: there is no stream and no super stream of this "
            "name. It is created by the first record, or with `penstock topics create`"
        )

    @contextlib.contextmanager
    def translating(self) -> Iterator[None]:
        """Translate refusals about a stream of this topic."""
        try:
            yield
        except RequestRefusedError as error:
            if error.code == Code.STREAM_DOES_NOT_EXIST:
                raise self.unknown() from error
            raise self._client.refusal(error) from error

    def _chunk_ids(self, connection: StreamConnection, stream: str) -> tuple[int, int]:
        """The offsets of the first and of the last chunk; negative if there is none."""
        answer = connection.request(Command.STREAM_STATS, f"statistics of stream {stream!r}", text(stream))
        stats = {answer.text(): answer.number("q") for _ in range(answer.number("I"))}
        return stats["first_chunk_id"], stats["committed_chunk_id"]

    def _exists(self) -> TopicExistsError:
        return TopicExistsError(f"topic {self.topic!r} exists already in {self._client.where}")

    def _arguments(self) -> dict[str, str]:
        """The arguments of new streams."""
        settings = self._settings
        given = {
            "initial-cluster-size": settings.replicas,
            "max-length-bytes": settings.max_bytes,
            "stream-max-segment-size-bytes": settings.segment_bytes,
            "max-age": None if settings.max_age_s is None else f"{math.ceil(settings.max_age_s)}s",
        }
        return {name: str(value) for name, value in given.items() if value is not None}
