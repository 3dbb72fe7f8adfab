"""Batches of librdkafka's messages, in columns, that create records only on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast, overload

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from penstock.model import Batch, Pointer, Record
from penstock.model.record import TimestampType
from penstock.streams.kafka.header_names import UNREADABLE, all_headers, mend

_TYPES: Final[dict[int, TimestampType]] = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "append"}


class KafkaBatch(Batch):
    """The messages of one partition, in order, without errors.

    A column is created at first use, in one pass of C code, and cached. Pointers without gaps are a range, which costs
    nothing. Records are created one by one on demand, and not cached.
    """

    __slots__ = ("_keys", "_messages", "_pointers", "_values", "_with_headers")

    def __init__(
        self, topic: str, partition: int, start: Pointer, next: Pointer, messages: Sequence[Message] = ()
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.next = next
        self._messages = messages
        self._pointers: Sequence[Pointer] | None = None
        self._values: Sequence[bytes | None] | None = None
        self._keys: Sequence[bytes | None] | None = None
        self._with_headers: Sequence[int] | None = None

    @property
    def records(self) -> Sequence[Record]:  # type: ignore[override]
        """All records, created again by each call."""
        return [record_from(message) for message in self._messages]

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return [record_from(message) for message in self._messages[index]]
        return record_from(self._messages[index])

    def __iter__(self) -> Iterator[Record]:
        return map(record_from, self._messages)

    def pointer(self, index: int) -> Pointer:
        return offset_of(self._messages[index])

    def pointers(self) -> Sequence[Pointer]:
        if self._pointers is None:
            self._pointers = self._find_pointers()
        return self._pointers

    def values(self) -> Sequence[bytes | None]:
        if self._values is None:
            self._values = list(map(Message.value, self._messages))
        return self._values

    def keys(self) -> Sequence[bytes | None]:
        if self._keys is None:
            self._keys = list(map(Message.key, self._messages))
        return self._keys

    def timestamps(self) -> Sequence[int | None]:
        return [time_ms if time_ms >= 0 else None for _, time_ms in map(Message.timestamp, self._messages)]

    def timestamp_types(self) -> Sequence[TimestampType | None]:
        return [_TYPES.get(kind) for kind, _ in map(Message.timestamp, self._messages)]

    def with_headers(self) -> Sequence[int]:
        if self._with_headers is None:
            headers = all_headers(self._messages)
            self._with_headers = [index for index, each in enumerate(headers) if each] if any(headers) else ()
        return self._with_headers

    def starting_at(self, start: Pointer) -> KafkaBatch:
        """The same messages for a caller that asked for an earlier pointer, without records in between."""
        return KafkaBatch(self.topic, self.partition, start, self.next, self._messages)

    def _find_pointers(self) -> Sequence[Pointer]:
        messages = self._messages
        if not messages:
            return ()
        first, last = offset_of(messages[0]), offset_of(messages[-1])
        if last - first == len(messages) - 1:  # offsets only grow, so there is no gap
            return range(first, last + 1)
        return cast(Sequence[Pointer], list(map(Message.offset, messages)))


def offset_of(message: Message) -> Pointer:
    offset = message.offset()
    assert offset is not None
    return offset


def record_from(message: Message) -> Record:
    """librdkafka's message as a record. See `penstock.model.header_name` for header names that are not UTF-8."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    try:
        headers = message.headers()
        _, timestamp_ms = message.timestamp()
        return Record(
            topic,
            partition,
            offset,
            message.key(),
            message.value(),
            tuple(headers) if headers else (),  # type: ignore[arg-type]  # librdkafka gives the values as bytes
            timestamp_ms if timestamp_ms >= 0 else None,
        )
    except UNREADABLE as error:
        mend(message, error)
    return record_from(message)
