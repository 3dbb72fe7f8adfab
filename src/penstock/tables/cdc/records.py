"""From rows to records: Debezium's envelope, or the row itself with two or three fields more.

A row is a sequence of JSON fragments, one for each column, as `bytes`: sources produce these from the text that their
database sends, and nothing is parsed twice.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.tables.changes import TRUNCATE_KEY

Row = tuple[str, bytes | None, bytes | None, int]
"""A record: topic, value, key, and the partition."""

BY_KEY: Final = -1
EVERY_PARTITION: Final = -2
"""Stands for all partitions: each gets a copy, because a reader of one partition must see it."""
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""In place of a large value that the database did not send, and that is gone since: its row was deleted or moved to
another key, so its delete follows."""

Fragments = Sequence[bytes]

_encode = msgspec.json.encode
UNPLAIN: Final = bytes([*range(32), *b'"\\', 0x7F])
"""What a JSON string may not contain as it is, or what our JSON does not."""
_UNPLAIN: Final = re.compile(b"[" + re.escape(UNPLAIN) + b"]").search


class CaptureFormat(StrEnum):
    """What the value of a record is."""

    DEBEZIUM = "debezium"
    """Debezium's envelope: before, after, source, op, ts_ms."""
    FLAT = "flat"
    """The row, with `__op`, `__ts_ms` and the position; a delete is only a tombstone."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where and when a change happened."""

    ts_ms: int
    """When the database committed it."""
    position: int
    """The position in the database's log: the LSN in PostgreSQL."""
    members: bytes
    """More members of the envelope's `source`, as JSON: `"txId":5,"index":0`."""
    is_snapshot: bool = False


class TableRecords:
    """The records of one table."""

    def __init__(
        self,
        topic: str,
        columns: Sequence[str],
        key: Sequence[str],
        form: CaptureFormat,
        origin: dict[str, Any],
        position_name: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`origin` are the members of `source` that all changes share; `position_name` is "lsn" in PostgreSQL."""
        self.topic = topic
        self.columns = tuple(columns)
        self.key = tuple(key)
        self._form = form
        indexes = [self.columns.index(name) for name in key]
        picker = operator.itemgetter(*indexes)
        self._key_of: Callable[[Fragments], tuple[bytes, ...]] = picker if len(indexes) > 1 else _single(indexes[0])
        self._key_template = _object(key)
        self._row_template = _object(columns)
        self._key_indexes = tuple(indexes)
        self._source = _encode(origin)[:-1]
        self._position_name = position_name.encode()
        self._now_ms = now_ms
        reserved = {"__op", "__ts_ms", f"__{position_name}"} & set(columns)
        if form is CaptureFormat.FLAT and reserved:
            raise ConfigError(f"topic {topic!r}: the flat form needs the name {min(reserved)!r}: use --format debezium")

    def key_bytes(self, row: Fragments) -> bytes:
        return self._key_template % self._key_of(row)

    def row_json(self, row: Fragments) -> bytes:
        return self._row_template % tuple(row)

    def key_json(self, row: Fragments) -> bytes:
        """What is known of a deleted row, unless the database logs whole rows."""
        return self.key_bytes(row)

    def created(self, row: Fragments, at: Moment) -> Row:
        """A new row, or one of a snapshot."""
        op = b"r" if at.is_snapshot else b"c"
        return self.topic, self._value(b"null", self._row_template % tuple(row), op, at), self.key_bytes(row), BY_KEY

    def updated(self, row: Fragments, before: bytes | None, at: Moment) -> Row:
        """A changed row with the same key."""
        value = self._value(before or b"null", self._row_template % tuple(row), b"u", at)
        return self.topic, value, self.key_bytes(row), BY_KEY

    def deleted(self, key: bytes, before: bytes, at: Moment) -> list[Row]:
        """The delete as an event, where the form has one, and the tombstone."""
        tombstone = (self.topic, None, key, BY_KEY)
        if self._form is CaptureFormat.FLAT:
            return [tombstone]
        return [(self.topic, self._value(before, b"null", b"d", at), key, BY_KEY), tombstone]

    def truncated(self, at: Moment) -> Row:
        return self.topic, self._value(b"null", b"null", b"t", at), TRUNCATE_KEY, EVERY_PARTITION

    def snapshot_writer(self, at: Moment) -> SnapshotWriter:
        """`created` for many rows of one snapshot, with everything computed that they share."""
        if self._form is CaptureFormat.FLAT:
            template = self._row_template[:-1] + self._flat_tail(b"r", at).replace(b"%", b"%%")
        else:
            tail = self._envelope_tail(b"r", at).replace(b"%", b"%%")
            template = b'{"before":null,"after":' + self._row_template + tail
        return SnapshotWriter(self.topic, template, self._key_template, self._key_indexes)

    def _value(self, before: bytes, after: bytes, op: bytes, at: Moment) -> bytes:
        if self._form is CaptureFormat.FLAT:
            if after == b"null":
                return b"{" + self._flat_tail(op, at)[1:]
            return after[:-1] + self._flat_tail(op, at)
        return b'{"before":' + before + b',"after":' + after + self._envelope_tail(op, at)

    def _flat_tail(self, op: bytes, at: Moment) -> bytes:
        return b',"__op":"%b","__%b":%d,"__ts_ms":%d}' % (op, self._position_name, at.position, at.ts_ms)

    def _envelope_tail(self, op: bytes, at: Moment) -> bytes:
        return b',"source":%b,"ts_ms":%d,"snapshot":"%b","%b":%d%b},"op":"%b","ts_ms":%d}' % (
            self._source,
            at.ts_ms,
            b"true" if at.is_snapshot else b"false",
            self._position_name,
            at.position,
            b"," + at.members if at.members else b"",
            op,
            self._now_ms(),
        )


class SnapshotWriter:
    """Makes records of the rows of one snapshot."""

    def __init__(self, topic: str, value_template: bytes, key_template: bytes, key_indexes: tuple[int, ...]) -> None:
        self._topic = topic
        self._value = value_template
        self._key = key_template
        self._key_indexes = key_indexes

    def __call__(self, row: Fragments) -> Row:
        values = tuple(row)
        return self._topic, self._value % values, self._key % tuple(values[each] for each in self._key_indexes), BY_KEY

    def of_columns(self, columns: Sequence[Fragments]) -> Iterator[Row]:
        """The records of rows that are given by column: in a fraction of the time."""
        values = map(self._value.__mod__, zip(*columns, strict=True))
        keys = map(self._key.__mod__, zip(*(columns[each] for each in self._key_indexes), strict=True))
        return zip(itertools.repeat(self._topic), values, keys, itertools.repeat(BY_KEY))


def text_json(text: bytes) -> bytes:
    """UTF-8 text as a JSON string."""
    if _UNPLAIN(text) is None:
        return b'"%b"' % text
    return _encode(text.decode())


def quoted_json(text: bytes) -> bytes:
    """Text without characters that JSON escapes, as a JSON string."""
    return b'"%b"' % text


def topic_name(*parts: str) -> str:
    """The name of a table's topic. What topic names may not contain becomes `_`, as in Debezium."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", ".".join(parts))


def check_topics(topics: dict[str, str]) -> None:
    """Raise ConfigError if two tables would share a topic."""
    tables: dict[str, str] = {}
    for table, topic in topics.items():
        if topic in tables:
            raise ConfigError(
                f"the tables {tables[topic]!r} and {table!r} would share the topic {topic!r}: capture one of them with "
                "another --prefix and --name"
            )
        tables[topic] = table


def _object(names: Sequence[str]) -> bytes:
    """A template of a JSON object, for the operator %."""
    return b"{" + b",".join(_encode(name).replace(b"%", b"%%") + b":%b" for name in names) + b"}"


def _single(index: int) -> Callable[[Fragments], tuple[bytes, ...]]:
    return lambda row: (row[index],)
