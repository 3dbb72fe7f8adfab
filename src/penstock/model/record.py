"""Records and batches: what is sent and what is read."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, overload

from penstock.errors import InvalidTopicError
from penstock.model.times import EPOCH

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record, in order; a name may occur more than once. Kafka allows any bytes as a name: `header_name`
turns one that is not UTF-8 into text."""


DELIVER_AT: Final = "penstock-deliver-at"
"""The header of a delayed record: when it is due, in milliseconds since 1970, as decimal text."""

RECORD_ID: Final = "penstock-id"
"""The header with an id that is the same whenever a record is sent, so that its receiver can drop repeats."""

ID_HEADERS: Final = ("webhook-id", "idempotency-key", "x-github-delivery")
"""Headers in which senders of webhooks say which message it is."""

_LONGEST_ID: Final = 200
_PLAIN_ID: Final = re.compile(rb"[!-~]([ -~]*[!-~])?")


def own_id(headers: Headers) -> str:
    """The id that the headers of a record give it, which is the same whenever it is sent; "" if they give none."""
    given = {name.lower(): value or b"" for name, value in headers}
    for name in (RECORD_ID, *ID_HEADERS):
        if value := given.get(name):
            is_plain = len(value) <= _LONGEST_ID and _PLAIN_ID.fullmatch(value)
            return value.decode() if is_plain else hashlib.sha256(value).hexdigest()
    if given.get("ce-id") and given.get("ce-source"):  # of CloudEvents: unique together
        return hashlib.sha256(given["ce-source"] + b"\0" + given["ce-id"]).hexdigest()
    return ""


_DIGITS_OF_A_TIME: Final = 15
"""`send` never writes a longer time."""


def due_ms(headers: Headers) -> int | None:
    """When a record is due, in milliseconds since 1970; None if it is not delayed.

    A malformed header is ignored. If the name occurs twice, the last one counts.
    """
    for name, content in reversed(headers):
        if name == DELIVER_AT:
            if content is not None and content.isdigit() and len(content) <= _DIGITS_OF_A_TIME:
                return int(content)
            return None
    return None


LONGEST_TOPIC_NAME: Final = 249
_TOPIC_NAME: Final = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}", re.ASCII)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows this topic name."""
    return _TOPIC_NAME.fullmatch(name) is not None


def check_topic_name(name: object) -> None:
    """Raise InvalidTopicError unless this is text that Kafka allows as a topic name."""
    if not isinstance(name, str):
        own = getattr(name, "name", None)
        hint = f"its name, {own!r}" if isinstance(own, str) else "its name as text"
        raise InvalidTopicError(f"{name!r} is not a topic name: give {hint}")
    if not is_topic_name(name):
        shown = name if len(name) <= 2 * LONGEST_TOPIC_NAME else f"{name[:LONGEST_TOPIC_NAME]}..."
        raise InvalidTopicError(
            f"{shown!r} is not a topic name: use 1 to {LONGEST_TOPIC_NAME} letters, digits, dots, underscores and "
            "dashes, but not '.' or '..'"
        )


UNKNOWN_HEADER: Final = "penstock-unknown-name"
"""Replaces a header name that was not UTF-8 and could not be recovered."""


def header_name(raw: bytes) -> str:
    r"""A header name as text that can be shown, stored and sent.

    A name that is UTF-8 stays as it is. In any other, each byte that is not UTF-8 becomes `\xNN` and a backslash
    becomes two, so that the bytes can be restored: `gr\xf6\xdfe` are the five bytes of größe in Latin-1.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is stored."""

    topic: str
    partition: int
    offset: int

    @property
    def pointer(self) -> str:
        """The offset as text, as it is stored."""
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
    """In a compacted topic, None deletes the key (a tombstone)."""
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970, set by the producer or the broker; None if there is none."""

    @property
    def pointer(self) -> str:
        """The offset as text, as it is stored."""
        return str(self.offset)

    @property
    def place(self) -> RecordMetadata:
        return RecordMetadata(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp as a datetime in UTC."""
        if self.timestamp_ms is None:
            return None
        return EPOCH + datetime.timedelta(milliseconds=self.timestamp_ms)


Pointer = int
"""A position in one partition; a larger one is later. Reading at a pointer starts at that record, or at the first one
after it, so a pointer need not belong to a record: a record's pointer plus one is the position after it.

Streams whose positions are not numbers (such as Redis `1700000000000-3`) pack them into one integer in the same order;
Python's integers have no limit. A store keeps pointers as decimal text or as numbers of any size.
"""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that is not stored yet: to be appended, or returned from a handler."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the time of appending."""
    partition: int | None = None
    """None: the partition of its key, or any."""

    def __init__(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        # Half the time of the __init__ that dataclass writes for frozen classes: there is one for each record sent.
        _set_topic(self, topic)
        _set_value(self, value)
        _set_key(self, key)
        _set_headers(self, headers)
        _set_timestamp_ms(self, timestamp_ms)
        _set_partition(self, partition)


_set_topic, _set_value, _set_key, _set_headers, _set_timestamp_ms, _set_partition = (
    NewRecord.__dict__[each.name].__set__ for each in fields(NewRecord)
)


TimestampType = Literal["create", "append"]


class Batch(Sequence[Record]):
    """Consecutive records of one partition. No record between `start` and `next` is left out.

    A batch may be empty and still have a `next` after its `start`: then there are no records in between.
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
        return self.records[index].offset

    def edge(self, index: int) -> Pointer:
        """Where the range of record `index` starts; `len(batch)` gives the end of the last one.

        A gap before a record belongs to its range, so that the ranges cover everything from `start` to `next`.
        """
        if index == 0:
            return self.start
        return self.next if index == len(self) else self.pointer(index)

    def pointers(self) -> Sequence[Pointer]:
        """The pointer of each record."""
        return [record.offset for record in self.records]

    def values(self) -> Sequence[bytes | None]:
        """The value of each record. Some streams give them without creating records."""
        if self._values is None:
            self._values = [record.value for record in self.records]
        return self._values

    def keys(self) -> Sequence[bytes | None]:
        """The key of each record."""
        return [record.key for record in self.records]

    def timestamps(self) -> Sequence[int | None]:
        """The timestamp of each record in milliseconds; None where there is none."""
        return [record.timestamp_ms for record in self.records]

    def timestamp_types(self) -> Sequence[TimestampType | None] | None:
        """Whose clock set each timestamp: "create", the producer's, or "append", the stream's. None: not known."""
        return None

    def with_headers(self) -> Sequence[int]:
        """The indexes of the records that have headers."""
        return [index for index, record in enumerate(self.records) if record.headers]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} from {self.topic}-{self.partition}, {self.start} to {self.next}>"
