"""A stream of somebody else's, `textids://user:password@/file`, whose records have text ids such as `1526919030474-0`.

It has what `abc.Stream` asks for, and nothing else: no administration, no positions at a time. Its records are in a
SQLite file, so every process sees them. Its partitions come and go. The password is the one of the file's first use.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from penstock.abc import Feature, Features, Stream
from penstock.errors import ConfigError, OffsetOutOfRangeError, TopicExistsError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record

FEATURES: Features = frozenset({Feature.PARTITIONS, Feature.KEYS, Feature.HEADERS, Feature.DURABLE})
SCHEMA = """
CREATE TABLE IF NOT EXISTS setting (password TEXT);
CREATE TABLE IF NOT EXISTS partition (topic TEXT, number INT, start TEXT DEFAULT '0-0', PRIMARY KEY (topic, number));
CREATE TABLE IF NOT EXISTS record (topic TEXT, partition INT, id TEXT, sort TEXT, key BLOB, value BLOB, headers TEXT,
  at_ms INT, PRIMARY KEY (topic, partition, sort));
"""


def pointer_of(text: str) -> Pointer:
    """The id `ms-n` as one number of 128 bits."""
    ms, _, number = text.partition("-")
    return int(ms) << 64 | int(number)


def id_of(pointer: Pointer) -> str:
    return f"{pointer >> 64}-{pointer & ((1 << 64) - 1)}"


def sort_of(pointer: Pointer) -> str:
    return str(pointer).zfill(40)


class TextIdTopic:
    def __init__(self, stream: TextIds, topic: str) -> None:
        self._stream = stream
        self.topic = topic

    @property
    def features(self) -> Features:
        return FEATURES

    def partitions(self) -> Sequence[int]:
        found = self._stream.rows("SELECT number FROM partition WHERE topic = ? ORDER BY number", self.topic)
        if not found:
            raise UnknownTopicError(f"there is no topic {self.topic!r}")
        return [number for (number,) in found]

    def locate(self, partition: int, position: Position) -> Pointer:
        if position.kind is PositionKind.TIME:
            raise ConfigError(f"topic {self.topic!r} cannot be read from a time: it has no {Feature.TIMES}")
        if position.kind is PositionKind.POINTER:
            return int(position.pointer)
        return self.span(partition)[0 if position.kind is PositionKind.EARLIEST else 1]

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        found = self._stream.rows("SELECT start FROM partition WHERE topic = ? AND number = ?", self.topic, partition)
        if not found:
            raise UnknownTopicError(f"there is no partition {partition} of topic {self.topic!r}")
        start = pointer_of(found[0][0])
        [(last,)] = self._stream.rows(
            "SELECT MAX(sort) FROM record WHERE topic = ? AND partition = ?", self.topic, partition
        )
        return start, max(start, start if last is None else int(last) + 1)

    def poll_rows(self, partition: int, start: Pointer, limit: int, timeout_s: float) -> list[Any]:
        """Rows from `start` on, as soon as there is one. TimeoutError when none has come."""
        until_s = time.monotonic() + timeout_s
        while True:
            first, end = self.span(partition)
            if not first <= start <= end:
                raise OffsetOutOfRangeError(f"{self.topic}-{partition}", start, first, end)
            rows = self._stream.rows(
                "SELECT id, key, value, headers, at_ms FROM record WHERE topic = ? AND partition = ? AND sort >= ? "
                "ORDER BY sort LIMIT ?",
                self.topic,
                partition,
                sort_of(start),
                limit,
            )
            if rows:
                return rows
            if time.monotonic() >= until_s:
                raise TimeoutError(f"nothing was appended to topic {self.topic!r} within {timeout_s:g} s")
            time.sleep(0.01)

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        try:
            rows = self.poll_rows(partition, start, limit, wait_s)
        except TimeoutError:
            rows = []
        records = [
            Record(
                self.topic,
                partition,
                pointer_of(text),
                key,
                value,
                tuple((name, None if it is None else it.encode()) for name, it in json.loads(headers)),
                at_ms,
            )
            for text, key, value, headers, at_ms in rows
        ]
        return Batch(self.topic, partition, start, records[-1].offset + 1 if records else start, records)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        receipts = []
        for record in records:
            partition = record.partition if record.partition is not None else self.partitions()[0]
            pointer = self._stream.store(self.topic, partition, record)
            receipt = Receipt(self.topic)
            receipt.settle(partition, pointer)
            receipts.append(receipt)
        return receipts

    def close(self) -> None:
        """The connection is the stream's."""


class TextIds:
    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        unknown = options.keys() - {"region"}
        if unknown:
            raise ConfigError(f"textids: URLs have no option {min(unknown)!r}; they have region")
        if options.get("region", "eu") != "eu":
            raise ConfigError(f"there is no region {options['region']!r}")
        self.url = url
        where = urlsplit(url)
        self._file = where.path
        with closing(self._opened()) as database:
            database.executescript(SCHEMA)
            known = database.execute("SELECT password FROM setting").fetchone()
            if known is None:
                database.execute("INSERT INTO setting VALUES (?)", (where.password,))
                database.commit()
            elif known[0] != where.password:
                raise ConfigError("the password of the file is another one")

    @property
    def features(self) -> Features:
        return FEATURES

    def open_topic(self, topic: str) -> TextIdTopic:
        return TextIdTopic(self, topic)

    def topics(self) -> list[str]:
        return [topic for (topic,) in self.rows("SELECT DISTINCT topic FROM partition ORDER BY topic")]

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        if topic in self.topics():
            raise TopicExistsError(f"topic {topic!r} exists already")
        for number in range(partitions or 1):
            self.add_partition(topic, number)

    def add_partition(self, topic: str, number: int) -> None:
        self.rows("INSERT INTO partition (topic, number) VALUES (?, ?)", topic, number)

    def retire(self, topic: str, number: int) -> None:
        """Remove a partition with its records, as Kinesis removes a closed shard."""
        self.rows("DELETE FROM partition WHERE topic = ? AND number = ?", topic, number)
        self.rows("DELETE FROM record WHERE topic = ? AND partition = ?", topic, number)

    def expire(self, topic: str, number: int, before: str) -> None:
        self.rows("UPDATE partition SET start = ? WHERE topic = ? AND number = ?", before, topic, number)
        self.rows(
            "DELETE FROM record WHERE topic = ? AND partition = ? AND sort < ?",
            topic,
            number,
            sort_of(pointer_of(before)),
        )

    def store(self, topic: str, partition: int, record: NewRecord) -> Pointer:
        """Store a record under the next id of its millisecond."""
        ms = record.timestamp_ms if record.timestamp_ms is not None else round(time.time() * 1000)
        with closing(self._opened()) as database, database:
            database.execute("BEGIN IMMEDIATE")
            [last] = database.execute(
                "SELECT MAX(sort) FROM record WHERE topic = ? AND partition = ?", (topic, partition)
            ).fetchone()
            pointer = max(ms << 64, 0 if last is None else int(last) + 1)
            headers = json.dumps([[name, None if it is None else it.decode()] for name, it in record.headers])
            row = (topic, partition, id_of(pointer), sort_of(pointer), record.key, record.value, headers, ms)
            database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return pointer

    def rows(self, query: str, *values: object) -> list[Any]:
        with closing(self._opened()) as database, database:
            return database.execute(query, values).fetchall()

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, timeout=30, isolation_level=None)
        database.execute("PRAGMA synchronous = OFF")
        return database

    def close(self) -> None:
        """Nothing is held open."""


def open_stream(url: str, options: Mapping[str, Any]) -> Stream:
    return TextIds(url, options)
