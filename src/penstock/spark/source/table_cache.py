"""Tables that a Python worker keeps between batches and brings up to date."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.spark.source.open_streams import ResourceCache
from penstock.spark.source.origin import Origin, Range, TopicSelection
from penstock.spark.source.read_options import SourceOptions, decoded
from penstock.spark.source.task_reading import read_range
from penstock.spark.source.topic_view import TopicView, open_topics
from penstock.spark.values.columns import RECORD
from penstock.streams.record_columns import pointer_text, schema_of
from penstock.tables.changes import TRUNCATE_KEY, is_truncate

_MOST_TOPICS: Final = 16
_views: Final = ResourceCache[TopicView](_MOST_TOPICS)


@dataclass(frozen=True, slots=True)
class Extent:
    """The readable range of a partition, and the id of its topic."""

    topic_id: str | None
    start: int
    end: int


def current_extent(origin: Origin, topic: str, partition: int) -> Extent:
    """The extent of a partition now, by a cached connection, which is replaced if it is broken."""
    local = _by_folder(origin)
    try:
        return _look_up(local, topic, partition)
    except (BrokerUnavailableError, ConnectionClosedError):
        _views.drop((*local.key, topic))
        return _look_up(local, topic, partition)


def _look_up(origin: Origin, topic: str, partition: int) -> Extent:
    view = _views.get((*origin.key, topic), lambda: open_topics(origin.url, TopicSelection((topic,)), origin.client))
    topic_id = view.describe().topic_ids.get(topic)
    place = (topic, partition)
    return Extent(topic_id, view.starts([place])[place], view.ends([place])[place])


def _by_folder(origin: Origin) -> Origin:
    """The origin with the folder as URL, if the log is on this host: connecting then finds or starts its broker."""
    if origin.folder is None or not origin.folder.is_here():
        return origin
    return Origin(f"log:{origin.folder.path}", origin.client, origin.folder)


MOST_BYTES: Final = int(os.environ.get("PENSTOCK_SPARK_TABLES_BYTES", 512 << 20))
"""The maximum size of all cached tables of a worker. A single table that is larger is read again in every batch."""
_FOLDED_ROWS: Final = 1_000_000
"""Old values are dropped after this many rows were read."""


@dataclass(slots=True)
class CachedTable:
    """The latest row of each key among the records of one partition from `start` up to `next`."""

    rows: pa.Table
    start: int
    next: int
    decoded: pa.Table | None = None

    @property
    def size_bytes(self) -> int:
        decoded_bytes = 0 if self.decoded is None or self.decoded is self.rows else self.decoded.nbytes
        return int(self.rows.nbytes + decoded_bytes)


class TableCache:
    """A cache bounded by bytes. The table that was updated least recently is evicted first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[Hashable, CachedTable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, key: Hashable) -> CachedTable | None:
        return self._tables.get(key)

    def put(self, key: Hashable, table: CachedTable) -> None:
        self._tables[key] = table
        self._tables.move_to_end(key)
        while self._tables and sum(each.size_bytes for each in self._tables.values()) > self._most_bytes:
            self._tables.popitem(last=False)


_cached: Final = TableCache(MOST_BYTES)


def current_table(options: SourceOptions, origin: Origin, partition: int) -> pa.Table:
    """The table of a partition as of now."""
    topic = options.topic
    now = current_extent(origin, topic, partition)
    key = (origin.folder or origin.url, topic, now.topic_id, partition, options.decoder)
    cached = _cached.get(key)
    if cached is None or cached.next > now.end:
        # The table is not cached, or the log was restored to an earlier state.
        cached = CachedTable(schema_of(tuple(RECORD.names), origin.has_offsets).empty_table(), now.start, now.start)
    if now.start > cached.start:
        cached = _without_expired(cached, now.start if origin.has_offsets else pointer_text(now.start), now.start)
    if cached.next < now.end or cached.decoded is None:
        cached = _updated(cached, origin, Range(topic, partition, cached.next, now.end))
        cached.decoded = _decoded_table(cached.rows, options)
        _cached.put(key, cached)
    assert cached.decoded is not None
    return cached.decoded


def _without_expired(cached: CachedTable, first: int | str, start: int) -> CachedTable:
    """The table without keys whose latest value has expired. `first` is `start` as in the column of pointers."""
    retained = pc.greater_equal(cached.rows.column("pointer"), first)
    return CachedTable(cached.rows.filter(retained), start, max(cached.next, start))


def _updated(cached: CachedTable, origin: Origin, wanted: Range) -> CachedTable:
    rows = cached.rows
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in read_range(origin, wanted, RECORD.names, skip_expired=True):
        gathered.append(batch)
        count += len(batch)
        if count >= _FOLDED_ROWS:
            rows = latest_of_each_key(pa.concat_tables([rows, pa.Table.from_batches(gathered)]), tombstones=True)
            gathered, count = [], 0
    rows = pa.concat_tables([rows, pa.Table.from_batches(gathered, rows.schema)])
    return CachedTable(latest_of_each_key(rows, tombstones=False), cached.start, wanted.end)


def latest_of_each_key(rows: pa.Table, *, tombstones: bool) -> pa.Table:
    """The last row of each key of one partition, in order; with `tombstones`, including those whose value is null.

    A truncate, as change data capture writes it, deletes all rows before it.
    """
    rows = _after_truncate(rows)
    numbered = pa.table({"key": rows.column("key"), "row": np.arange(len(rows))})
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")])
    last = last.filter(pc.is_valid(last.column("key")))
    chosen = np.sort(last.column("row_max").to_numpy())
    latest = rows.take(pa.array(chosen))
    if not tombstones:
        latest = latest.filter(pc.is_valid(latest.column("value")))
    return latest.combine_chunks()


def _after_truncate(rows: pa.Table) -> pa.Table:
    keys = rows.column("key")
    suspects = pc.or_kleene(pc.is_null(keys), pc.equal(keys, pa.scalar(TRUNCATE_KEY, keys.type)))
    values = rows.column("value")
    if pc.any(suspects).as_py():
        suspects = pc.and_kleene(suspects, pc.match_substring_regex(values, r'op"\s*:\s*"t"'))
    for index in reversed(pc.indices_nonzero(suspects).to_pylist()):
        if is_truncate(keys[index].as_py(), values[index].as_py()):
            return rows.slice(index + 1)
    return rows


def _decoded_table(rows: pa.Table, options: SourceOptions) -> pa.Table:
    if options.decoder is None:
        return rows
    batches = list(decoded(iter(rows.to_batches()), options))
    return pa.Table.from_batches(batches) if batches else pa.table({})
