"""Undecodable rows: the task that finds them stores them in the dead letters.

They are stored before the task returns the other rows of their batch. A task that is retried stores them again under
the same ids, so there is one letter for each row. While the dead letters cannot be reached, the task fails, and nothing
is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.abc import DeadLetters
from penstock.consuming.loop.failures import dead_letter_of, error_text
from penstock.dead_letters import open_dead_letters
from penstock.dead_letters.opening import names_a_topic
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.model import DeadLetter, Failing, NewRecord, Record
from penstock.model.clock import SystemClock
from penstock.model.times import milliseconds
from penstock.spark.source.open_streams import ResourceCache
from penstock.spark.source.read_options import absolute_url
from penstock.streams import Connection, connect
from penstock.streams.options import ConnectOptions
from penstock.streams.url import without_password
from penstock.streams.url_settings import resolved

logger = logging.getLogger(__name__)

_TOLD: Final = 3
"""The maximum number of errors of a batch that a task logs; the letters contain all of them."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The name and version of the reader in a letter."""

    name: str
    version: str


def stream_of(url: str) -> str:
    """The URL of a stream as it is in `Letters`: valid in every process, without the settings of a client."""
    return resolved(absolute_url(url), {})[0]


@dataclass(frozen=True, slots=True)
class Letters:
    """The location of dead letters, valid in every process."""

    url: str = field(repr=False)
    spec: str = field(repr=False)
    """The argument of `open_dead_letters`."""
    client: ConnectOptions = field(repr=False)

    def __str__(self) -> str:
        return without_password(self.spec)

    def is_topic_of(self, url: str) -> bool:
        """Whether they are a topic of the stream at this URL, as `stream_of` makes it."""
        return names_a_topic(self.spec) and self.url == url

    def records(self, letters: Sequence[DeadLetter]) -> list[NewRecord]:
        """The records of these letters, for a transaction of the caller. Only for letters in a topic."""
        with contextlib.closing(self.open()) as opened:
            assert isinstance(opened.letters, StreamDeadLetters)
            return opened.letters.records(letters)

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Return when the letters are durable."""
        with contextlib.closing(self.open()) as opened:
            opened.letters.put(letters)

    def open(self) -> OpenLetters:
        """Open the letters, and the connection that they need if they are in a topic."""
        with contextlib.ExitStack() as undoing:
            connection = None
            if names_a_topic(self.spec):
                connection = undoing.enter_context(connect(self.url, **self.client))
            letters = open_dead_letters(self.spec, connection)
            undoing.pop_all()
        return OpenLetters(letters, connection)


@dataclass(frozen=True, slots=True)
class OpenLetters:
    letters: DeadLetters
    connection: Connection | None

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            if self.connection is not None:
                closing.callback(self.connection.close)
            closing.callback(self.letters.close)


_MOST_OPEN: Final = 16
_open: Final = ResourceCache[OpenLetters](_MOST_OPEN)
"""The open dead letters of this process. They stay open between tasks, as connecting takes longer than writing."""
_lock: Final = threading.Lock()
atexit.register(_open.close)


def put_undecodable(
    rows: pa.RecordBatch, errors: Sequence[Exception], *, letters: Letters, group: str, reader: Reader
) -> None:
    """Store rows with the columns of RECORD in the dead letters. They are durable when this returns."""
    now_ms = SystemClock().wall_ms()
    made = [
        _letter(record_of(row), error, group, reader, now_ms)
        for row, error in zip(rows.to_pylist(), errors, strict=True)
    ]
    for letter in made[:_TOLD]:
        logger.warning("%s goes to the dead letters in %s: %s", letter.record.place, letters, letter.error)
    key = letters.url, letters.spec
    with _lock:
        try:
            _open.get(key, letters.open).letters.put(made)
        except BaseException:
            _open.drop(key)
            raise


def record_of(row: Mapping[str, Any]) -> Record:
    """The record of a row with the columns of RECORD."""
    at = row["timestamp"]
    headers = row["headers"] or ()
    return Record(
        row["topic"],
        row["partition"],
        int(row["pointer"]),
        row["key"],
        row["value"],
        tuple((header["key"], header["value"]) for header in headers),
        None if at is None else milliseconds(at, "the timestamp"),
    )


def _letter(record: Record, error: Exception, group: str, reader: Reader, now_ms: int) -> DeadLetter:
    failing = Failing(record.offset, 1, error_text(error), now_ms, now_ms)
    return dead_letter_of(reader, group, record, error, "", failing)
