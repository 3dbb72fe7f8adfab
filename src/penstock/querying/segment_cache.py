"""Closed segments of local topics as Parquet files, so that a query decodes each of them once."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ConfigError
from penstock.log.reader import ClosedSegment
from penstock.querying.json_fields import JsonFields, quoted
from penstock.querying.topic_table import TopicSource
from penstock.querying.values import OFFSET, PARTITION, TopicColumns

logger = logging.getLogger(__name__)

_VERSION: Final = "2"
"""Part of the name of each file: another version makes its own files."""
_SUFFIX: Final = ".parquet"
_UNDECODABLE: Final = b"penstock.undecodable"
_FIELDS: Final = b"penstock.fields"
"""The JSON fields that are columns of the file, with their types."""
_ROWS_IN_GROUP: Final = 122_880
"""DuckDB's own choice: a thread reads one group."""
_UNSUPPORTED: Final = (pa.types.is_duration, pa.types.is_dictionary, pa.types.is_union, pa.types.is_map)
"""Types that come back from Parquet as others."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A closed segment as a file."""

    path: Path
    fields: Mapping[str, str]
    """The JSON fields that it has as columns, with their types."""


@dataclass(frozen=True, slots=True)
class CachedSegments:
    """The closed segments of a topic, as files."""

    files: Sequence[CachedFile]
    records: int
    undecodable: int
    ends: Mapping[int, int]
    """The first offset of each partition that is in no file."""

    def sources(self, table: TopicColumns, starts: Mapping[int, int]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """What queries read for the records of the files from `starts` on, and the JSON fields that are columns there:
        files with the same fields together."""
        partition, offset = quoted(table.names[PARTITION]), quoted(table.names[OFFSET])
        deleted = [f"{partition} = {each} and {offset} < {start}" for each, start in starts.items() if start]
        kept = f" where not ({' or '.join(deleted)})" if deleted else ""
        alike: dict[frozenset[tuple[str, str]], list[CachedFile]] = {}
        for file in self.files:
            alike.setdefault(frozenset(file.fields.items()), []).append(file)
        for files in alike.values():
            paths = ", ".join("'" + str(file.path).replace("'", "''") + "'" for file in files)
            yield f"(select * from read_parquet([{paths}]){kept})", files[0].fields


class SegmentCache:
    """Parquet files in a folder, of at most about `limit_bytes`. Several processes may share it.

    A file has the name of what it was made of: the segment's file, and the columns. So a segment that was compacted, or
    a topic whose type has changed, has other files, and those that are not used for longest are removed.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ConfigError(f"cache_bytes={limit_bytes} must be positive")
        self.folder = folder
        self._limit_bytes = limit_bytes

    def closed(
        self, source: TopicSource, columns: TopicColumns, decoder: str, fields: JsonFields | None
    ) -> CachedSegments | None:
        """The closed segments of the topic, of which missing files are written first, with these fields of JSON values
        as columns. None if it has none, or types that Parquet does not keep. `decoder` tells what makes columns of
        values.

        A file keeps the fields with which it was written, whatever later samples tell."""
        if any(_is_unsupported(field.type) for field in columns.schema):
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        files: list[Path] = []
        ends: dict[int, int] = {}
        for partition, segments in source.closed_segments().items():
            for segment in segments:
                file = self.folder / _name_of(segment, columns.schema, decoder)
                if not _touched(file):
                    self._write(file, source, columns, partition, segment, fields)
                files.append(file)
                ends[partition] = segment.next_offset
        if not files:
            return None
        self._evict(files)
        records = undecodable = 0
        found: list[CachedFile] = []
        for file in files:
            about = pq.read_metadata(file)
            told = about.metadata or {}
            records += about.num_rows
            undecodable += int(told.get(_UNDECODABLE, b"0"))
            found.append(CachedFile(file, msgspec.json.decode(told.get(_FIELDS, b"{}"), type=dict[str, str])))
        return CachedSegments(found, records, undecodable, ends)

    def _write(
        self,
        file: Path,
        source: TopicSource,
        columns: TopicColumns,
        partition: int,
        segment: ClosedSegment,
        fields: JsonFields | None,
    ) -> None:
        fresh = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.tmp")
        before, read_before = columns.undecodable, source.records_read
        try:
            try:
                self._write_columns(fresh, source, columns, partition, segment, fields)
            except duckdb.Error as error:  # a value that is not what the sample told: queries parse this segment
                logger.info("the JSON fields of %s are not columns of %s: %s", segment, file, error)
                columns.undecodable, source.records_read = before, read_before
                self._write_columns(fresh, source, columns, partition, segment, None)
            fresh.replace(file)
        finally:
            columns.undecodable = before
            fresh.unlink(missing_ok=True)

    def _write_columns(
        self,
        fresh: Path,
        source: TopicSource,
        columns: TopicColumns,
        partition: int,
        segment: ClosedSegment,
        fields: JsonFields | None,
    ) -> None:
        """Raises duckdb.Error if a JSON value does not fit the fields."""
        before, names = columns.undecodable, columns.schema.names
        start, _ = source.spans[partition]
        ranges = {partition: (max(start, segment.base_offset), segment.next_offset)}
        batches = (columns.batch(given, names) for given in source.read(ranges, columns.needs(names)))
        groups = _in_groups(batches, columns.schema)
        schema = columns.schema
        with contextlib.ExitStack() as stack:
            if fields is not None:
                connection = stack.enter_context(contextlib.closing(duckdb.connect()))
                groups = (_with_fields(connection, group, fields) for group in groups)
                schema = _with_fields(connection, schema.empty_table(), fields).schema
            writer = stack.enter_context(pq.ParquetWriter(fresh, schema, compression="zstd"))
            for table in groups:
                writer.write_table(table, row_group_size=_ROWS_IN_GROUP)
            told = {_UNDECODABLE: str(columns.undecodable - before)}
            if fields is not None:
                told[_FIELDS] = msgspec.json.encode(fields.kinds).decode()
            writer.add_key_value_metadata(told)

    def _evict(self, used: Iterable[Path]) -> None:
        """Remove files, those first that were not used for longest, until the rest is within the limit."""
        kept = set(used)
        found: list[tuple[float, int, Path]] = []
        for file in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if total <= self._limit_bytes:
                return
            if file not in kept:
                file.unlink(missing_ok=True)
                total -= size


def _name_of(segment: ClosedSegment, schema: pa.Schema, decoder: str) -> str:
    parts = (_VERSION, pa.__version__, *map(str, segment), str(schema), decoder)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40] + _SUFFIX


def _touched(file: Path) -> bool:
    """Whether the file is there. It counts as used now."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return False
    return True


def _in_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_IN_GROUP:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _with_fields(connection: duckdb.DuckDBPyConnection, table: pa.Table, fields: JsonFields) -> pa.Table:
    """The table with the fields of its values as columns."""
    connection.register("records", table)
    query = fields.storing("records", table.schema.names)
    made = connection.sql(query).to_arrow_table().select(fields.kinds)
    for name in made.column_names:
        table = table.append_column(made.schema.field(name), made.column(name))
    return table


def _is_unsupported(kind: pa.DataType) -> bool:
    if any(is_kind(kind) for is_kind in _UNSUPPORTED):
        return True
    return any(_is_unsupported(kind.field(index).type) for index in range(kind.num_fields))
