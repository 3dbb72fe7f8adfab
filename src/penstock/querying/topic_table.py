"""A topic as a table that DuckDB scans.

DuckDB passes filters to Datasets of pyarrow only, so a table is one: its `scanner` gets the columns and the filter of
each scan. It must apply the filter exactly, as DuckDB does not do so again. DuckDB passes no filters to tables with
columns of views, which are faster to read: those are read where a query has no filter that could help.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.abc import Admin, Feature
from penstock.errors import OffsetOutOfRangeError, QueryStoppedError
from penstock.log.reader import ClosedSegment, PartitionReader
from penstock.model.closing import Closing
from penstock.querying.bounds import Bounds, bounds_of, needed
from penstock.querying.values import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, VALUE, TopicColumns
from penstock.streams import Connection
from penstock.streams.range_reading import batches_between
from penstock.streams.record_columns import from_batch, from_log
from penstock.streams.url import log_folder, without_password

_AT_ONCE: Final = 10_000
"""The maximum number of records of one read through the client."""
_SAMPLE: Final = 50
"""Records at each end of a partition that are looked at to tell text from bytes."""
_SAMPLED_PARTITIONS: Final = 4
_IDLE_READERS: Final = 32
_COLUMNS: Final = {PARTITION: "partition", OFFSET: "pointer", TIMESTAMP: "timestamp", HEADERS: "headers"}


@dataclass
class Stopping:
    """Whether a query was cancelled."""

    event: threading.Event = field(default_factory=threading.Event)
    why: str = ""

    def check(self) -> None:
        if self.event.is_set():
            raise QueryStoppedError(self.why)


class Readers(Closing):
    """Readers of partitions on this machine, kept open between queries: opening one looks through its open segment.
    Thread-safe."""

    def __init__(self) -> None:
        self._idle: dict[Path, PartitionReader] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reader(self, folder: Path) -> Iterator[PartitionReader]:
        """A reader for one user at a time, which sees what is there now."""
        with self._lock:
            reader = self._idle.pop(folder, None)
        if reader is None:
            reader = PartitionReader(folder)
        try:
            reader.refresh()
            yield reader
        except GeneratorExit:  # its user needs no more
            self._keep(folder, reader)
            raise
        except BaseException:
            reader.close()
            raise
        self._keep(folder, reader)

    def _keep(self, folder: Path, reader: PartitionReader) -> None:
        with self._lock:
            if self._is_closed:
                superfluous = [reader]
            else:
                superfluous = [self._idle.pop(folder)] if folder in self._idle else []
                self._idle[folder] = reader
                if len(self._idle) > _IDLE_READERS:
                    superfluous.append(self._idle.pop(next(iter(self._idle))))
        for each in superfluous:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for reader in idle.values():
            reader.close()


class TopicSource:
    """The records of a topic, up to where it ended when the query began."""

    def __init__(self, connection: Connection, url: str, topic: str, stopping: Stopping, readers: Readers) -> None:
        self.topic = topic
        self.has_offsets = Feature.OFFSETS in connection.features
        self.records_read = 0
        """Records that were read for the query, whether they matched or not."""
        self._connection = connection
        self._admin: Admin = connection.admin()
        self._where = without_password(url)
        self._stopping = stopping
        self._readers = readers
        self._folder: Path | None = log_folder(url)
        partitions = self._admin.require(topic).partitions
        earliest = self._admin.earliest(topic, partitions)
        latest = self._admin.latest(topic, partitions)
        self.spans = {each: (earliest[each], latest[each]) for each in partitions}

    @property
    def is_local(self) -> bool:
        return self._folder is not None

    def sample(self) -> tuple[list[bytes], list[bytes]]:
        """Some keys and values from both ends of some partitions, without those that are null."""
        found: dict[str, list[bytes]] = {KEY: [], VALUE: []}
        filled = [each for each, (start, end) in self.spans.items() if start < end]
        for partition in filled[:_SAMPLED_PARTITIONS]:
            start, end = self.spans[partition]
            late = max(start, end - _SAMPLE) if self.has_offsets else start
            for at in {start, late}:
                stop = min(end, at + _SAMPLE) if self.has_offsets else end
                with contextlib.suppress(OffsetOutOfRangeError):
                    given, _ = next(self._read(partition, at, stop, (KEY, VALUE)), ({}, 0))
                    for name, cells in given.items():
                        found[name] += (cell for cell in cells.slice(0, _SAMPLE).to_pylist() if cell is not None)
        return found[KEY], found[VALUE]

    def closed_segments(self) -> dict[int, list[ClosedSegment]]:
        """The closed segments of each partition, from its start on without a gap. Only of local topics."""
        found: dict[int, list[ClosedSegment]] = {}
        if self._folder is None:
            return found
        for partition, (start, end) in self.spans.items():
            with self._readers.reader(self._folder / f"{self.topic}-{partition}") as reader:
                segments = reader.closed_segments()
            for segment in segments:
                following = found[partition][-1].next_offset if partition in found else start
                if segment.base_offset <= following < segment.next_offset <= end:
                    found.setdefault(partition, []).append(segment)
        return found

    def skip_to(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on only."""
        for partition, offset in offsets.items():
            _, end = self.spans[partition]
            self.spans[partition] = (min(offset, end), end)

    def ranges(self, bounds: Bounds) -> dict[int, tuple[int, int]]:
        """What to read of each partition."""
        if bounds.since_ms is None or Feature.TIMES not in self._connection.features or not bounds.offsets:
            return dict(bounds.offsets)
        firsts = self._admin.at_time(self.topic, bounds.since_ms, list(bounds.offsets))
        return {each: (max(start, firsts[each]), end) for each, (start, end) in bounds.offsets.items()}

    def read(self, ranges: Mapping[int, tuple[int, int]], names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """These columns about the records, many records at a time. Records that expire meanwhile are skipped."""
        for partition, (start, end) in ranges.items():
            while start < end:
                try:
                    for given, rows in self._read(partition, start, end, names):
                        self._stopping.check()
                        self.records_read += rows
                        yield given
                    break
                except OffsetOutOfRangeError as error:
                    if error.offset >= error.start:
                        raise
                    start = error.start

    def _read(self, partition: int, start: int, end: int, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], int]]:
        if self._folder is not None:
            return self._from_files(self._folder, partition, start, end, names)
        return self._from_client(partition, start, end, names)

    def _from_files(
        self, folder: Path, partition: int, start: int, end: int, names: Sequence[str]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        plain = [name for name in names if name in _COLUMNS]
        with self._readers.reader(folder / f"{self.topic}-{partition}") as reader:
            batches = reader.to_arrow(start, end, views=True, unit="us")
            if reader.end_offset < end:  # deleted and created again, or restored from a copy
                raise OffsetOutOfRangeError(f"{self.topic}-{partition}", end, reader.start_offset, reader.end_offset)
            for batch in batches:
                found = from_log(batch, self.topic, [_COLUMNS[name] for name in plain])
                given = dict(zip(plain, found.columns, strict=True))
                yield given | {name: batch.column(name) for name in names if name in (KEY, VALUE)}, batch.num_rows

    def _from_client(
        self, partition: int, start: int, end: int, names: Sequence[str]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        columns = [_COLUMNS.get(name, name) for name in names]
        with contextlib.closing(self._connection.open_topic(self.topic)) as stream:
            for batch, rows in batches_between(stream, partition, start, end, _AT_ONCE, self._where):
                found = from_batch(batch, columns, has_offsets=self.has_offsets).slice(0, rows)
                yield dict(zip(names, found.columns, strict=True)), rows


class TopicTable(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The table of a topic. `failure` is the error that ended a scan, which DuckDB passes on as text only."""

    def __init__(self, source: TopicSource, columns: TopicColumns) -> None:
        self.source = source
        self.columns = columns
        self.failure: BaseException | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> TopicScan:
        """Called by DuckDB for each scan."""
        return TopicScan(self, self.schema.names if columns is None else list(columns), filter)


class TopicScan:
    """One scan of a table."""

    def __init__(self, table: TopicTable, wanted: Sequence[str], filter: ds.Expression | None) -> None:
        self._table = table
        self._wanted = wanted
        self._filter = filter

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([self._table.schema.field(name) for name in self._wanted])
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._scan()
        except GeneratorExit:  # DuckDB needs no more
            raise
        except BaseException as error:  # also an interrupt, which DuckDB would turn into an error of its own
            self._table.failure = self._table.failure or error
            raise

    def _scan(self) -> Iterator[pa.RecordBatch]:
        source, columns = self._table.source, self._table.columns
        names = {name: columns.names[name] for name in (PARTITION, OFFSET, TIMESTAMP)}
        if not source.has_offsets:
            del names[OFFSET]
        ranges = source.ranges(bounds_of(self._filter, source.spans, columns.schema, names))
        made = needed(self._filter, self._wanted, columns.schema.names)
        for given in source.read(ranges, columns.needs(made)):
            batch = columns.batch(given, made)
            if self._filter is not None:
                batch = batch.filter(self._filter)
            yield batch.select(self._wanted)
