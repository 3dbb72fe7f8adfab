"""Records as entries of a Redis stream, and entries as records.

An entry of ours has the fields `value` and `key`, which is missing if there is none; for each header a field
`header.NAME`, or `header-null.NAME` if it has no value; `null` in place of a missing value; and `timestamp` if the
producer gave one. The timestamp of a record is when Redis stored it, which its id says, so that positions at a time are
exact; the producer's comes back as the header `penstock-timestamp`.

Entries of other programs: if there is a field `value` (or the one that `value_field` names), it is the value, and other
fields are headers. If there is none, the value is a JSON object of all fields, with text; bytes that are not UTF-8
become `\\xNN` there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from penstock.errors import ConfigError
from penstock.model import Batch, Headers, NewRecord, Pointer, Record
from penstock.model.record import TimestampType, header_name

SEQUENCE_BITS: Final = 64
_SEQUENCE: Final = (1 << SEQUENCE_BITS) - 1
_HEADER: Final = b"header."
_NULL_HEADER: Final = b"header-null."
_NULL: Final = b"null"
_TIMESTAMP: Final = b"timestamp"
TIMESTAMP_HEADER: Final = "penstock-timestamp"
"""When the producer says that the record was made, in milliseconds since 1970, as decimal text."""


def pointer_of(id: bytes) -> Pointer:
    ms, _, sequence = id.partition(b"-")
    return int(ms) << SEQUENCE_BITS | int(sequence)


def id_of(pointer: Pointer) -> str:
    return f"{pointer >> SEQUENCE_BITS}-{pointer & _SEQUENCE}"


def parse_id(text: str) -> Pointer:
    """The pointer of `MS-SEQ`, or of a pointer in decimals."""
    ms, dash, sequence = text.strip().partition("-")
    if ms.isdecimal() and ms.isascii() and not dash:
        return int(ms)
    if ms.isdecimal() and sequence.isdecimal() and text.isascii():
        pointer = int(ms) << SEQUENCE_BITS | int(sequence)
        if int(sequence) <= _SEQUENCE:
            return pointer
    raise ConfigError(f"{text!r} is not the id of a Redis entry: they look like 1526919030474-55")


Entry = tuple[bytes, list[bytes]]
"""An id, and fields with their values in turn."""


class EntryFormat:
    """Converts records to entries and back, with these fields for value and key."""

    def __init__(self, value_field: str, key_field: str) -> None:
        self._value = value_field.encode()
        self._key = key_field.encode()

    def fields(self, record: NewRecord) -> list[bytes]:
        """The fields of an entry: name, value, name, value, ..."""
        fields = [_NULL, b""] if record.value is None else [self._value, record.value]
        if record.key is not None:
            fields += (self._key, record.key)
        for name, content in record.headers:
            fields += (_NULL_HEADER + name.encode(), b"") if content is None else (_HEADER + name.encode(), content)
        if record.timestamp_ms is not None and all(name != TIMESTAMP_HEADER for name, _ in record.headers):
            fields += (_TIMESTAMP, b"%d" % record.timestamp_ms)
        return fields

    def records(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[Record]:
        """Consecutive entries often have the same milliseconds, which are parsed once."""
        records: list[Record] = []
        ms, stamp_ms, base = b"", 0, 0
        for id, fields in entries:
            its_ms, _, sequence = id.partition(b"-")
            if its_ms != ms:
                ms, stamp_ms = its_ms, int(its_ms)
                base = stamp_ms << SEQUENCE_BITS
            key, value, headers = self.parts(fields)
            records.append(Record(topic, partition, base + int(sequence), key, value, headers, stamp_ms))
        return records

    def values(self, entries: Sequence[Entry]) -> list[bytes | None]:
        name = self._value
        return [fields[1] if fields[0] == name else self.parts(fields)[1] for _, fields in entries]

    def keys(self, entries: Sequence[Entry]) -> list[bytes | None]:
        value, key = self._value, self._key
        return [
            fields[3] if len(fields) > 2 and fields[0] == value and fields[2] == key else self.parts(fields)[0]
            for _, fields in entries
        ]

    def parts(self, fields: Sequence[bytes]) -> tuple[bytes | None, bytes | None, Headers]:
        """The key, value and headers of an entry."""
        if fields[0] == self._value:
            if len(fields) == 4 and fields[2] == self._key:
                return fields[3], fields[1], ()
            if len(fields) == 2:
                return None, fields[1], ()
        return self._all_parts(fields)

    def _all_parts(self, fields: Sequence[bytes]) -> tuple[bytes | None, bytes | None, Headers]:
        names = fields[::2]
        if self._value not in names and _NULL not in names:
            return None, _as_json(fields), ()
        key: bytes | None = None
        value: bytes | None = None
        headers: list[tuple[str, bytes | None]] = []
        for name, content in zip(names, fields[1::2], strict=True):
            if name == self._value and value is None:
                value = content
            elif name == self._key:
                key = content
            elif name.startswith(_HEADER):
                headers.append((header_name(name[len(_HEADER) :]), content))
            elif name.startswith(_NULL_HEADER):
                headers.append((header_name(name[len(_NULL_HEADER) :]), None))
            elif name == _TIMESTAMP:
                headers.append((TIMESTAMP_HEADER, content))
            elif name != _NULL or self._value in names:
                headers.append((header_name(name), content))
        return key, value, tuple(headers)


class RedisBatch(Batch):
    """Entries of one partition. Columns are made of them on demand, and records, too: consumers need few of them."""

    __slots__ = ("_entries", "_format", "_records")

    def __init__(
        self,
        topic: str,
        partition: int,
        start: Pointer,
        entries: Sequence[Entry],
        format: EntryFormat,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.next = pointer_of(entries[-1][0]) + 1 if entries else start
        self._entries = entries
        self._format = format
        self._records: list[Record] | None = None

    @property
    def records(self) -> Sequence[Record]:  # type: ignore[override]
        if self._records is None:
            self._records = self._format.records(self.topic, self.partition, self._entries)
        return self._records

    def __len__(self) -> int:
        return len(self._entries)

    def pointer(self, index: int) -> Pointer:
        return pointer_of(self._entries[index][0])

    def pointers(self) -> Sequence[Pointer]:
        return [pointer_of(id) for id, _ in self._entries]

    def values(self) -> Sequence[bytes | None]:
        return self._format.values(self._entries)

    def keys(self) -> Sequence[bytes | None]:
        return self._format.keys(self._entries)

    def timestamps(self) -> Sequence[int | None]:
        return [int(id.partition(b"-")[0]) for id, _ in self._entries]

    def timestamp_types(self) -> Sequence[TimestampType | None]:
        return ["append"] * len(self._entries)

    def with_headers(self) -> Sequence[int]:
        parts = self._format.parts
        return [index for index, (_, fields) in enumerate(self._entries) if parts(fields)[2]]


def _as_json(fields: Sequence[bytes]) -> bytes:
    found = {
        header_name(name): content.decode(errors="backslashreplace")
        for name, content in zip(fields[::2], fields[1::2], strict=True)
    }
    return json.dumps(found, ensure_ascii=False).encode()
