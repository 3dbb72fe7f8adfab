"""Records as messages of Pulsar, and messages as records.

The payload is the value; a null value is Pulsar's own. The key is the message's key, which is text: one that is not
UTF-8, or is empty, is in base64, and the property `penstock-key` says so. Properties of a message are text, sorted, and
each name occurs once: so headers are properties if they come back from there unchanged, and otherwise all of them
together are the property `penstock-headers`, in JSON with base64. The timestamp of a record is when it was published,
so that positions at a time can be found; a producer's own is the event time of the message, and comes back as the
header `penstock-timestamp`.

Messages of other programs: properties are headers. A pointer is `ledger << 96 | entry << 32 | index in the batch`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.model import Batch, Headers, NewRecord, Pointer, Record
from penstock.model.record import TimestampType

KEY: Final = "penstock-key"
HEADERS: Final = "penstock-headers"
TIMESTAMP_HEADER: Final = "penstock-timestamp"
"""When the producer says that the record was made, in milliseconds since 1970, as decimal text."""
_BASE64: Final = "base64"
_OURS: Final = frozenset({KEY, HEADERS})
INDEX_BITS: Final = 32
LEDGER_SHIFT: Final = 96
_INDEX: Final = (1 << INDEX_BITS) - 1
_ENTRY: Final = (1 << (LEDGER_SHIFT - INDEX_BITS)) - 1
_UNKNOWN_PARTITION: Final = -1
_ID: Final = re.compile(r"\(?(\d+)[:,](\d+)(?:[:,](-?\d+)(?:[:,](-?\d+))?)?\)?", re.ASCII)
_HASH: Final = (1 << 32) - 1
_POSITIVE: Final = (1 << 31) - 1
_BATCH_SIZE_FIELD: Final = 6
_KEYS_REMEMBERED: Final = 10_000
_LATEST_MS: Final = (1 << 63) - 1

Properties = dict[str, str]


def pointer(ledger: int, entry: int, index: int = 0) -> Pointer:
    return ledger << LEDGER_SHIFT | entry << INDEX_BITS | index


def pointer_of(id: Any) -> Pointer:
    """The pointer of a message id. A message that is not in a batch has the index -1."""
    index = id.batch_index()
    place: int = id.ledger_id() << LEDGER_SHIFT | id.entry_id() << INDEX_BITS
    return place | index if index > 0 else place


def next_after(id: Any) -> Pointer:
    """The place after a message: that of the next one in its batch, or the next entry after the last."""
    index = id.batch_index()
    if index < 0 or index + 1 == _batch_size(id.serialize()):
        return pointer(id.ledger_id(), id.entry_id() + 1)
    return pointer(id.ledger_id(), id.entry_id(), index + 1)


def ledger_of(pointer: Pointer) -> int:
    return pointer >> LEDGER_SHIFT


def entry_of(pointer: Pointer) -> int:
    return pointer >> INDEX_BITS & _ENTRY


def index_of(pointer: Pointer) -> int:
    return pointer & _INDEX


def pointer_text(pointer: Pointer) -> str:
    """`ledger:entry:partition:index`. The partition is -1, as for a topic without any: it is shown beside pointers."""
    return f"{ledger_of(pointer)}:{entry_of(pointer)}:{_UNKNOWN_PARTITION}:{index_of(pointer)}"


def parse_pointer(text: str) -> Pointer:
    """The pointer of a message id as Pulsar's clients and tools show it, or of a pointer in decimals."""
    stripped = text.strip()
    if stripped.isdecimal() and stripped.isascii():
        return int(stripped)
    found = _ID.fullmatch(stripped.replace(" ", ""))
    if found is not None:
        ledger, entry, index = int(found[1]), int(found[2]), int(found[4] or 0)
        if entry <= _ENTRY and index <= _INDEX:
            return pointer(ledger, entry, max(0, index))
    raise ConfigError(
        f"{text!r} is not a message id of Pulsar: they look like 172:5:-1:0 (ledger, entry, partition, index in the "
        "batch), or 172:5"
    )


@lru_cache(_KEYS_REMEMBERED)
def partition_of(key: bytes, count: int) -> int:
    """The partition of a key by Java's hash of its text, as Pulsar's Java client chooses it."""
    text, _ = _key_text(key)
    hashed = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = 31 * hashed + (high << 8 | low) & _HASH
    return (hashed & _POSITIVE) % count


def fields_of(record: NewRecord) -> tuple[str | None, Properties | None, int | None]:
    """The key, properties and event time of a record's message."""
    key: str | None = None
    properties: Properties | None = None
    if record.key is not None:
        key, is_encoded = _key_text(record.key)
        if is_encoded:
            properties = {KEY: _BASE64}
    headers = record.headers
    event_ms = record.timestamp_ms
    if event_ms is not None and not 0 < event_ms <= _LATEST_MS:
        if all(name != TIMESTAMP_HEADER for name, _ in headers):
            headers = (*headers, (TIMESTAMP_HEADER, b"%d" % event_ms))
        event_ms = None
    if headers:
        properties = {**(properties or {}), **_properties(headers)}
    return key, properties, event_ms


class PulsarBatch(Batch):
    """Messages of one partition. Columns are made of them on demand, and records, too: consumers need few of them."""

    __slots__ = ("_messages", "_pointers", "_records")

    def __init__(
        self,
        topic: str,
        partition: int,
        start: Pointer,
        next: Pointer,
        messages: Sequence[Any],
        pointers: list[Pointer],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.next = next
        self._messages = messages
        self._pointers = pointers
        self._records: list[Record] | None = None

    @property
    def records(self) -> Sequence[Record]:  # type: ignore[override]
        if self._records is None:
            topic, partition = self.topic, self.partition
            places = zip(self._messages, self._pointers, strict=True)
            self._records = [_record_of(topic, partition, place, message) for message, place in places]
        return self._records

    def __len__(self) -> int:
        return len(self._pointers)

    def pointer(self, index: int) -> Pointer:
        return self._pointers[index]

    def pointers(self) -> Sequence[Pointer]:
        return self._pointers

    def values(self) -> Sequence[bytes | None]:
        return [_value_of(message) for message in self._messages]

    def keys(self) -> Sequence[bytes | None]:
        return [_key_of(message, message.properties()) for message in self._messages]

    def timestamps(self) -> Sequence[int | None]:
        return [message.publish_timestamp() for message in self._messages]

    def timestamp_types(self) -> Sequence[TimestampType | None]:
        return ["create"] * len(self._pointers)

    def with_headers(self) -> Sequence[int]:
        return [index for index, record in enumerate(self.records) if record.headers]


def _record_of(topic: str, partition: int, pointer: Pointer, message: Any) -> Record:
    properties: Properties = message.properties()
    event_ms: int = message.event_timestamp()
    headers: Headers = ()
    if properties or event_ms:
        headers = _headers(properties, event_ms)
    key = _key_of(message, properties)
    return Record(topic, partition, pointer, key, _value_of(message), headers, message.publish_timestamp())


def _value_of(message: Any) -> bytes | None:
    data: bytes = message.data()
    return data if data or not message.has_null_value() else None


def _batch_size(id: bytes) -> int | None:
    """Field 6 of a serialized message id, which the client does not show. The fields before it are numbers."""
    number = value = shift = 0
    for byte in id:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        if not number:
            if value & 7:  # not a number, and so after the batch size
                return None
            number = value >> 3
        elif number == _BATCH_SIZE_FIELD:
            return value
        else:
            number = 0
        value = shift = 0
    return None


def _key_of(message: Any, properties: Properties) -> bytes | None:
    text: str = message.partition_key()
    if properties and KEY in properties:
        return base64.b64decode(text.rstrip("=") + "==")
    return text.encode() if text else None


def _key_text(key: bytes) -> tuple[str, bool]:
    """A key as text, and whether it is in base64. A message cannot have an empty key."""
    if key:
        try:
            return key.decode(), False
        except UnicodeDecodeError:
            pass  # base64 holds any bytes
    return base64.b64encode(key).decode() or "=", True


def _properties(headers: Headers) -> Properties:
    plain: Properties = {}
    for name, content in headers:
        if content is None or name in plain or name in _OURS or name == TIMESTAMP_HEADER:
            break
        try:
            plain[name] = content.decode()
        except UnicodeDecodeError:
            break
    else:
        if len(plain) == 1 or list(plain) == sorted(plain, key=str.encode):
            return plain
    encoded = [[name, None if content is None else base64.b64encode(content).decode()] for name, content in headers]
    return {HEADERS: json.dumps(encoded)}


def _headers(properties: Properties, event_ms: int) -> Headers:
    found: list[tuple[str, bytes | None]] = []
    if HEADERS in properties:
        for name, content in json.loads(properties[HEADERS]):
            found.append((name, None if content is None else base64.b64decode(content)))
    found += sorted((name, text.encode()) for name, text in properties.items() if name not in _OURS)
    if event_ms and all(name != TIMESTAMP_HEADER for name, _ in found):
        found.append((TIMESTAMP_HEADER, b"%d" % event_ms))
    return tuple(found)
