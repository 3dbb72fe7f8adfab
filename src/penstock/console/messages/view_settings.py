"""Which records a query selects, and how they are shown."""

from __future__ import annotations

import datetime
from typing import Any, Final

import msgspec

from penstock.console.messages.filters import Filter
from penstock.console.messages.showing import UNDECODABLE, WHOLE_CHARACTERS, Schemas, Showing, framed_schema
from penstock.console.views import Decode, MessageQuery, MessageRow
from penstock.console.visible import visible
from penstock.errors import ConfigError
from penstock.model import Record

LONGEST_SEARCH: Final = 1_000
_MOST_HEADERS: Final = 100
WHOLE_HEADERS: Final = 1_000


class ViewSettings:
    """What a query says about single records. Raises FilterError for a bad expression."""

    def __init__(self, query: MessageQuery, schemas: Schemas | None, now: datetime.datetime) -> None:
        if len(query.search) > LONGEST_SEARCH:
            raise ConfigError(f"the text to search for has {len(query.search):,} characters; the limit is 1,000")
        self._showing = Showing(query.decode, schemas=schemas, topic=query.topic)
        self._schemas = schemas
        self._topic = query.topic
        self._filter = Filter(query.expression, now) if query.expression.strip() else None
        self._search = _Search(query.search) if query.search else None
        self.is_choosy = self._filter is not None or self._search is not None
        """Whether some records do not match."""

    @property
    def note(self) -> str:
        return "" if self._filter is None else self._filter.note

    def wants(self, record: Record, size_bytes: int) -> bool:
        if self._search is not None and not self._search.is_in(record):
            return False
        return self._filter is None or self._filter.holds(record, size_bytes, self._decode)

    def row(self, record: Record, size_bytes: int) -> MessageRow:
        return row_of(record, size_bytes, self._showing)

    def _decode(self, data: bytes) -> Any:
        """The decoded value of bytes, for paths into it."""
        if self._schemas is not None and framed_schema(data) is not None:
            value, form = self._schemas.decode(data, self._topic)
            return msgspec.json.decode(value) if form == "json" else value
        try:
            return msgspec.json.decode(data)
        except UNDECODABLE:
            value = msgspec.msgpack.decode(data)
            if not isinstance(value, dict | list):
                raise ValueError("nearly any byte is a number in msgpack") from None
            return value


def row_of(record: Record, size_bytes: int, showing: Showing, most_headers: int = _MOST_HEADERS) -> MessageRow:
    return MessageRow(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        showing.show(record.key),
        showing.show(record.value),
        tuple((visible(name), showing.show(content)) for name, content in record.headers[:most_headers]),
        size_bytes,
        len(record.headers),
    )


def whole(decode: Decode, schemas: Schemas | None, topic: str) -> Showing:
    return Showing(decode, WHOLE_CHARACTERS, is_pretty=True, schemas=schemas, topic=topic)


class _Search:
    """Case-insensitive text search in keys, values and headers."""

    def __init__(self, text: str) -> None:
        self._folded = text.casefold()
        self._bytes = text.lower().encode("ascii") if text.isascii() else None

    def is_in(self, record: Record) -> bool:
        if self._is_in(record.value) or self._is_in(record.key):
            return True
        return any(self._folded in name.casefold() or self._is_in(content) for name, content in record.headers)

    def _is_in(self, data: bytes | None) -> bool:
        if not data:
            return False
        if self._bytes is not None and self._bytes in data.lower():
            return True
        if b"\\u" in data:  # JSON in ASCII escapes other letters
            try:
                return self._folded in msgspec.json.encode(msgspec.json.decode(data)).decode().casefold()
            except UNDECODABLE:
                return False
        return self._bytes is None and self._folded in data.decode(errors="replace").casefold()
