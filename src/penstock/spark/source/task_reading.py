"""Reading in tasks: exactly the given ranges, from the log's files on the same host, else through the client.

A Python worker serves many tasks, so it keeps readers of files and connections open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from penstock.abc import TopicStream
from penstock.errors import (
    BrokerUnavailableError,
    OffsetOutOfRangeError,
    RecordsExpiredError,
    TopicReplacedError,
    UnknownTopicError,
)
from penstock.log.reader import PartitionReader
from penstock.model import Batch, Record
from penstock.spark.source.open_streams import OpenStream, ResourceCache
from penstock.spark.source.origin import LogFolder, Origin, Range
from penstock.streams.connecting import open_stream
from penstock.streams.range_reading import batches_between
from penstock.streams.record_columns import from_batch, from_log
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

_MOST_FOLDERS: Final = 64
_MOST_STREAMS: Final = 16
_AT_ONCE: Final = 10_000
"""The maximum number of records of one read through the client, which become one RecordBatch."""

Read = TypeVar("Read")


_files: Final = ResourceCache[PartitionReader](_MOST_FOLDERS)
_streams: Final = ResourceCache[OpenStream](_MOST_STREAMS)


def read_range(
    origin: Origin, wanted: Range, columns: Sequence[str], *, skip_expired: bool = False
) -> Iterator[pa.RecordBatch]:
    """Read the records of a range, in order, as these columns.

    Raises RecordsExpiredError if some have expired since; with `skip_expired`, skips them.
    """

    def read(part: Range) -> Iterator[pa.RecordBatch]:
        if origin.folder is not None and origin.folder.is_here():
            return _from_files(origin.folder, part, columns)
        return (
            from_batch(batch, columns, has_offsets=origin.has_offsets).slice(0, rows)
            for batch, rows in _from_client(origin, part)
        )

    return _despite_expiry(read, wanted, skip_expired)


def read_records(origin: Origin, wanted: Range, at_once: int, *, skip_expired: bool) -> Iterator[Record]:
    """Read the records of a range through the client, at most `at_once` ahead. Errors are those of `read_range`."""

    def read(part: Range) -> Iterator[Record]:
        for batch, rows in _from_client(origin, part, at_once):
            yield from batch[:rows]

    return _despite_expiry(read, wanted, skip_expired)


def _despite_expiry(read: Callable[[Range], Iterator[Read]], wanted: Range, skip_expired: bool) -> Iterator[Read]:
    topic, partition, start = wanted.topic, wanted.partition, wanted.start
    while start < wanted.end:
        try:
            yield from read(Range(topic, partition, start, wanted.end))
        except OffsetOutOfRangeError as error:
            if not error.offset < error.start:
                raise TopicReplacedError(
                    f"topic {topic!r}, partition {partition}: there were records up to {wanted.end}, but the partition "
                    f"now ends at {error.end}. {WHAT_TO_DO}"
                ) from error
            if not skip_expired:
                raise RecordsExpiredError(topic, partition, error.offset, error.start) from error
            logger.warning(
                "topic %r, partition %d: skipping records %d to %d, which have expired",
                topic,
                partition,
                error.offset,
                min(error.start, wanted.end),
            )
            start = error.start
        else:
            return


WHAT_TO_DO: Final = (
    "It was deleted and created again, or its log was restored from a copy. To read it from the beginning, give the "
    "query another checkpoint"
)


def _from_files(folder: LogFolder, wanted: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    path = Path(folder.path) / f"{wanted.topic}-{wanted.partition}"
    for batch in _opened_at(path, wanted):
        yield from_log(batch, wanted.topic, columns)


def _opened_at(path: Path, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Read the files, which contain all records up to the end that the broker reported.

    If they do not, the cached reader may belong to an earlier topic of this name: try once more with a new one.
    """
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


def open_topic_at(origin: Origin, topic: str) -> TopicStream:
    """The topic through the client, by a connection that this process keeps open."""
    return _streams.get(origin.key, lambda: OpenStream(open_stream(origin.url, **origin.client))).topic(topic)


def _from_client(origin: Origin, wanted: Range, at_once: int = _AT_ONCE) -> Iterator[tuple[Batch, int]]:
    """Batches of a range that are not empty, and how many of the records of each are in the range."""
    try:
        stream = open_topic_at(origin, wanted.topic)
        where = without_password(origin.url)
        yield from batches_between(stream, wanted.partition, wanted.start, wanted.end, at_once, where)
    except BrokerUnavailableError as error:
        _streams.drop(origin.key)
        if origin.folder is None:
            raise
        raise BrokerUnavailableError(
            f"{error}. The folder {origin.folder.path} is not on this host, so its broker must be reachable from here: "
            "start it first with penstock serve --listen ADDRESS:PORT, at an address of its host"
        ) from error
