"""Batches of librdkafka's messages, in columns, that make records only for those who want records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast, overload

from confluent_kafka import Message

from penstock.model import Batch, Pointer, Record
from penstock.streams.kafka.header_names import all_headers
from penstock.streams.kafka.reading import record_from


class KafkaBatch(Batch):
    """A batch over the messages of one partition, in their order, none of them an error.

    A column is made when it is first asked for, in one pass inside the interpreter's C code, and kept. Pointers without
    a gap are a range, which costs nothing at all. Records are made one by one as they are asked for, and not kept.
    """

    __slots__ = ("_keys", "_messages", "_pointers", "_values")

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

    @property
    def records(self) -> Sequence[Record]:  # type: ignore[override]
        """All of them, made anew."""
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

    def timestamps(self) -> Sequence[tuple[int, int]]:
        """librdkafka's number for whose clock it was, and the time in milliseconds, of each."""
        return list(map(Message.timestamp, self._messages))

    def with_headers(self) -> Sequence[int]:
        headers = all_headers(self._messages)
        return [index for index, each in enumerate(headers) if each] if any(headers) else ()

    def starting_at(self, start: Pointer) -> KafkaBatch:
        """The same messages for somebody who asked for an earlier pointer, with nothing in between."""
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
    """The offset of a message that was read, which has one."""
    offset = message.offset()
    assert offset is not None
    return offset
