"""Records and batches: what is sent, what is read, and where it stands."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from penstock.model.times import EPOCH

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record, in their order; a name may stand there more than once. What `header_name` makes of a name
that is no UTF-8 stands there, too: Kafka lets names be any bytes."""


def header_name(raw: bytes) -> str:
    r"""The name of a header as text that can be shown, stored and sent.

    A name that is UTF-8 is itself. In any other one, what is no UTF-8 stands as `\xNN`, and a backslash as two, so that
    its bytes can be had back: `gr\xf6\xdfe` are the five bytes of größe in Latin-1.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    @property
    def pointer(self) -> str:
        """The place within the partition, as it is stored."""
        return str(self.offset)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    """None is a value, too: in a compacted topic it says that the key is gone."""
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970, as the producer or the broker gave it; None where there is none."""

    @property
    def pointer(self) -> str:
        """The place within the partition, as it is stored."""
        return str(self.offset)

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp as a time in UTC."""
        if self.timestamp_ms is None:
            return None
        return EPOCH + datetime.timedelta(milliseconds=self.timestamp_ms)


Pointer = int
"""A place in one partition. A larger one is further on. Reading at a pointer gives the record there, or the first one
behind it, so a pointer need not be that of a record: one more than a record's is the place behind it.

Streams whose places are not numbers (Redis `1700000000000-3`, Pulsar's message ids) pack them into one, keeping their
order; Python's integers have no limit. A store keeps pointers as decimal text or as numbers of any size.
"""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that stands nowhere yet: to be appended, or returned from a handler."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: when it is appended."""
    partition: int | None = None
    """None: the partition of its key, or any."""


class Batch(Sequence[Record]):
    """An ordered run of records from one partition. Nothing of the partition is left out between `start` and `next`.

    A batch may be empty and still have a `next` behind its `start`: then there is nothing to read in between.
    """

    __slots__ = ("_values", "next", "partition", "records", "start", "topic")

    def __init__(
        self, topic: str, partition: int, start: Pointer, next: Pointer, records: Sequence[Record] = ()
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.next = next
        self.records = records
        self._values: Sequence[bytes | None] | None = None

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def pointer(self, index: int) -> Pointer:
        """The pointer of one record."""
        return self.records[index].offset

    def edge(self, index: int) -> Pointer:
        """Where the part of the partition begins that record `index` stands for; `len(batch)` gives where it all ends.

        A gap before a record belongs to it, so that the parts of all records together are all from `start` to `next`.
        """
        if index == 0:
            return self.start
        return self.next if index == len(self) else self.pointer(index)

    def pointers(self) -> Sequence[Pointer]:
        """The pointer of each record."""
        return [record.offset for record in self.records]

    def values(self) -> Sequence[bytes | None]:
        """The value of each record. Streams that can give them without making records do."""
        if self._values is None:
            self._values = [record.value for record in self.records]
        return self._values

    def keys(self) -> Sequence[bytes | None]:
        """The key of each record."""
        return [record.key for record in self.records]

    def with_headers(self) -> Sequence[int]:
        """Which records have headers."""
        return [index for index, record in enumerate(self.records) if record.headers]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from {self.topic}-{self.partition}, {self.start} to {self.next}>"
