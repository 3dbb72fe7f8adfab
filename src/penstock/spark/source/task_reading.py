"""What a task does: read its ranges, exactly, from files where they are at hand, else through the client.

A Python worker of Spark serves one task after the other, so what is costly to open is kept in it: the view of a
partition's files, a connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.abc import Stream
from penstock.errors import (
    BrokerUnavailableError,
    OffsetOutOfRangeError,
    RecordsExpiredError,
    TopicReplacedError,
    UnknownTopicError,
)
from penstock.log.reader import PartitionReader
from penstock.spark.source.batch_columns import from_batch
from penstock.spark.source.kept_open import KeptOpen
from penstock.spark.source.origin import LogFolder, Origin, Range
from penstock.spark.source.record_columns import from_log
from penstock.streams.connecting import open_streams

logger = logging.getLogger(__name__)

_MOST_FOLDERS: Final = 64
_MOST_TOPICS: Final = 16
_AT_ONCE: Final = 10_000
"""Records of one read through the client, which become one RecordBatch."""
_SILENCE_S: Final = 30.0
"""How long a stream that has more, by its own word, may say nothing."""
_WAIT_S: Final = 1.0


class _OpenTopic:
    """A topic through the client, with a connection of its own."""

    def __init__(self, origin: Origin) -> None:
        self._streams = open_streams(origin.url, **origin.client)
        self.stream: Stream = self._streams.stream(origin.topic)

    def close(self) -> None:
        try:
            self.stream.close()
        finally:
            self._streams.close()


_files: Final = KeptOpen[PartitionReader](_MOST_FOLDERS)
_topics: Final = KeptOpen[_OpenTopic](_MOST_TOPICS)


def read_range(
    origin: Origin, wanted: Range, columns: Sequence[str], *, skip_expired: bool = False
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order, as these columns.

    Raises RecordsExpiredError where some were deleted meanwhile; with `skip_expired` those are passed over.
    """
    start = wanted.start
    while start < wanted.end:
        part = Range(wanted.partition, start, wanted.end)
        try:
            if origin.folder is not None and origin.folder.is_here():
                yield from _from_files(origin.folder, origin.topic, part, columns)
            else:
                yield from _from_client(origin, part, columns)
        except OffsetOutOfRangeError as error:
            if not error.offset < error.start:
                raise TopicReplacedError(
                    f"topic {origin.topic!r}, partition {wanted.partition}: its end has gone back to {error.end}, and "
                    f"records up to {wanted.end} were there before. {WHAT_TO_DO}"
                ) from error
            if not skip_expired:
                raise RecordsExpiredError(origin.topic, wanted.partition, error.offset, error.start) from error
            logger.warning(
                "topic %r, partition %d: records %d to %d are gone and are passed over",
                origin.topic,
                wanted.partition,
                error.offset,
                min(error.start, wanted.end),
            )
            start = error.start
        else:
            return


WHAT_TO_DO: Final = (
    "It was deleted and created anew, or its log was restored from a copy. To read it from its beginning, give the "
    "query another checkpoint"
)


def _from_files(folder: LogFolder, topic: str, wanted: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    path = Path(folder.path) / f"{topic}-{wanted.partition}"
    for batch in _opened_at(path, wanted):
        yield from_log(batch, topic, columns)


def _opened_at(path: Path, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The files must reach as far as the broker said: what it has told is in them. Look once more before that is
    doubted: what is known of them may be about a topic that had this name before."""
    try:
        return _chunks(path, wanted)
    except (OffsetOutOfRangeError, UnknownTopicError):
        _files.drop(path)
        return _chunks(path, wanted)


def _chunks(path: Path, wanted: Range) -> Iterator[pa.RecordBatch]:
    reader = _files.get(path, lambda: PartitionReader(path))
    chunks = reader.to_arrow(wanted.start, wanted.end, unit="us")
    if reader.end_offset < wanted.end:
        raise OffsetOutOfRangeError(path.name, wanted.end, reader.start_offset, reader.end_offset)
    return chunks


def open_stream(origin: Origin) -> Stream:
    """The topic through the client, over a connection that this process keeps."""
    return _topics.get(origin.key, lambda: _OpenTopic(origin)).stream


def _from_client(origin: Origin, wanted: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        stream = open_stream(origin)
        at = wanted.start
        heard_s = time.monotonic()
        while at < wanted.end:
            batch = stream.read(wanted.partition, at, min(_AT_ONCE, wanted.end - at), _WAIT_S)
            if batch:
                rows = _rows_before(batch.pointers(), wanted.end)
                if rows:
                    yield from_batch(batch, columns).slice(0, rows)
            if batch.next > at:
                at, heard_s = batch.next, time.monotonic()
            elif time.monotonic() - heard_s > _SILENCE_S:
                raise BrokerUnavailableError(
                    f"topic {origin.topic!r}, partition {wanted.partition}: {origin.url} has records from {at} to "
                    f"{wanted.end}, and has given none for {_SILENCE_S:g} s; see that it runs and can be reached"
                )
    except BrokerUnavailableError as error:
        _topics.drop(origin.key)
        if origin.folder is None:
            raise
        raise BrokerUnavailableError(
            f"{error}. The folder {origin.folder.path} is not on this host, so its broker must be reached from here: "
            "start it beforehand with penstock serve --listen ADDRESS:PORT, at an address of its host"
        ) from error


def _rows_before(pointers: Sequence[int], end: int) -> int:
    """How many of these ascending pointers are before `end`."""
    if pointers[-1] < end:
        return len(pointers)
    return next(row for row, pointer in enumerate(pointers) if pointer >= end)
