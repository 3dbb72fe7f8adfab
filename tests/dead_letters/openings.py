"""Dead letters on each storage, opened in the way of the conformance suite: by a function, with a folder for a case."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import penstock
from penstock.abc import Feature, Features
from penstock.dead_letters.file import FileDeadLetters
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.model import NewRecord, Receipt
from penstock.streams.memory import MemoryStream
from penstock.streams.memory.streams import MemoryTopicStream

URL_VARIABLE: Final = "PENSTOCK_TEST_LETTERS_URL"
"""Where the stream is that the tests have started; child processes inherit it."""


@functools.cache
def connection(number: int) -> penstock.Connection:
    """A connection of this process to the stream. There are two, used in turn: making one takes half a second."""
    return penstock.connect(os.environ[URL_VARIABLE])


_turns = itertools.cycle((0, 1))


def hang_up() -> None:
    """Close the connections, before the stream is."""
    for number in (0, 1):
        connection(number).close()
    connection.cache_clear()


class StreamByKey(MemoryTopicStream):
    """A stream whose partitions cannot be chosen."""

    @property
    def features(self) -> Features:
        return super().features - {Feature.CHOSEN_PARTITION}

    def append(self, records: Sequence[NewRecord]) -> list[Receipt]:
        assert all(record.partition is None for record in records), "this stream chooses the partitions itself"
        return list(super().append(records))


class StreamsByKey(MemoryStream):
    @property
    def features(self) -> Features:
        return super().features - {Feature.CHOSEN_PARTITION}

    def open_topic(self, topic: str) -> StreamByKey:
        return StreamByKey(topic, self._topics)


def on_the_log(folder: Path) -> StreamDeadLetters:
    return StreamDeadLetters(connection(next(_turns)), folder.name)


def in_memory(folder: Path) -> StreamDeadLetters:
    return StreamDeadLetters(MemoryStream.named(folder.name), "letters")


def in_memory_by_key(folder: Path) -> StreamDeadLetters:
    """On a stream of three partitions that chooses them itself, and with hardly any room to hold letters."""
    streams = StreamsByKey.named(folder.name)
    if "letters" not in streams.topics():
        streams.create_topic("letters", 3)
    return StreamDeadLetters(streams, "letters", held_bytes=5_000)


def in_sqlite(folder: Path) -> SqliteDeadLetters:
    return SqliteDeadLetters(folder / "letters.db")


def in_a_file(folder: Path) -> FileDeadLetters:
    return FileDeadLetters(folder / "letters.jsonl")


def in_a_folder_holding_nothing(folder: Path) -> FileDeadLetters:
    return FileDeadLetters(folder / "letters", held_bytes=0)
