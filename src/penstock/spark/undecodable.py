"""Rows that are no value of their topic: to the dead letters, from the task that found them.

They are there before the task gives out what came with them. A task that is tried again puts them again, under the same
ids, so there is one letter for each. While the dead letters cannot be reached, the task fails, and nothing is lost.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.abc import DeadLetters
from penstock.consuming.dead_letters import open_dead_letters
from penstock.consuming.dead_letters.opening import names_a_topic
from penstock.consuming.giving_up import describe, letter_of
from penstock.model import DeadLetter, Failing, Record
from penstock.model.clock import SystemClock
from penstock.model.times import milliseconds
from penstock.streams import Connection, connect
from penstock.streams.options import ConnectOptions

logger = logging.getLogger(__name__)

_TOLD: Final = 3
"""So many errors of a batch are written to the log of the task; all of them are in the letters."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who could not read a record, as its letter names it."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Letters:
    """Where dead letters are, for every process that has some to put."""

    url: str
    spec: str
    """What `open_dead_letters` takes."""
    client: ConnectOptions = field(repr=False)


def put_undecodable(
    rows: pa.RecordBatch, errors: Sequence[Exception], *, letters: Letters, group: str, reader: Reader
) -> None:
    """Returns when these rows, which have the columns of RECORD, are durable with the dead letters."""
    now_ms = SystemClock().wall_ms()
    made = [
        _letter(record_of(row), error, group, reader, now_ms)
        for row, error in zip(rows.to_pylist(), errors, strict=True)
    ]
    for letter in made[:_TOLD]:
        logger.warning("%s goes to the dead letters in %s: %s", letter.record.place, letters.spec, letter.error)
    _OPEN.put(letters, made)


def record_of(row: Mapping[str, Any]) -> Record:
    """A row with the columns of RECORD as the record that it was."""
    at = row["timestamp"]
    headers = row["headers"] or ()
    return Record(
        row["topic"],
        row["partition"],
        row["pointer"],
        row["key"],
        row["value"],
        tuple((header["key"], header["value"]) for header in headers),
        None if at is None else milliseconds(at, "the timestamp"),
    )


def _letter(record: Record, error: Exception, group: str, reader: Reader, now_ms: int) -> DeadLetter:
    failing = Failing(record.offset, 1, describe(error), now_ms, now_ms)
    return letter_of(reader, group, record, error, "", failing)


class _Open:
    """The dead letters that this process has open. Kept between tasks, as to connect takes longer than to write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[DeadLetters, Connection | None]] = {}
        self._process = os.getpid()

    def put(self, where: Letters, letters: Sequence[DeadLetter]) -> None:
        with self._lock:
            if self._process != os.getpid():  # forked off: what is open belongs to the other process
                self._open.clear()
                self._process = os.getpid()
            try:
                self._get(where).put(letters)
            except BaseException:
                self._close(where.url, where.spec)
                raise

    def _get(self, where: Letters) -> DeadLetters:
        place = where.url, where.spec
        if place not in self._open:
            connection = connect(where.url, **where.client) if names_a_topic(where.spec) else None
            try:
                self._open[place] = open_dead_letters(where.spec, connection), connection
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
        return self._open[place][0]

    def _close(self, url: str, spec: str) -> None:
        letters, connection = self._open.pop((url, spec), (None, None))
        try:
            if letters is not None:
                letters.close()
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                for url, spec in list(self._open):
                    self._close(url, spec)


_OPEN: Final = _Open()
atexit.register(_OPEN.close)
