"""The tables that a Python worker keeps between batches, and how they are brought up to date."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.columns import RECORD
from penstock.spark.source.decoded import decoded
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.origin import Origin, Range
from penstock.spark.source.record_columns import SCHEMA
from penstock.spark.source.table_ends import extent_now
from penstock.spark.source.task_reading import read_range

MOST_BYTES: Final = int(os.environ.get("PENSTOCK_SPARK_TABLES_BYTES", 512 << 20))
"""What the tables kept by one worker may take together. One that is larger alone is read anew in every batch."""
_FOLDED_ROWS: Final = 1_000_000
"""While much is read, old values are left out whenever so many rows have gathered."""


@dataclass(slots=True)
class KeptTable:
    """The rows of one partition that are alive, of records from `start` up to `next`."""

    rows: pa.Table
    start: int
    next: int
    shown: pa.Table | None = None
    """The rows as the decoder gives them."""

    @property
    def size_bytes(self) -> int:
        shown_bytes = 0 if self.shown is None or self.shown is self.rows else self.shown.nbytes
        return int(self.rows.nbytes + shown_bytes)


class KeptTables:
    """Bounded by bytes; the table that was not used for longest goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[Hashable, KeptTable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, key: Hashable) -> KeptTable | None:
        return self._tables.get(key)

    def put(self, key: Hashable, table: KeptTable) -> None:
        self._tables[key] = table
        self._tables.move_to_end(key)
        while self._tables and sum(each.size_bytes for each in self._tables.values()) > self._most_bytes:
            self._tables.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._tables.pop(key, None)


_kept: Final = KeptTables(MOST_BYTES)


def current_table(options: SourceOptions, origin: Origin, partition: int) -> pa.Table:
    """The table of a partition as it is now."""
    now = extent_now(origin, partition)
    key = (origin.folder or origin.url, origin.topic, now.topic_id, partition, options.decoder)
    kept = _kept.get(key)
    if kept is None or kept.next > now.end:
        # Nothing is known, or it is about a log that has gone back to an earlier state.
        kept = KeptTable(SCHEMA.empty_table(), now.start, now.start)
    if now.start > kept.start:
        kept = _without_expired(kept, now.start)
    if kept.next < now.end or kept.shown is None:
        kept = _brought_up(kept, origin, Range(partition, kept.next, now.end))
        kept.shown = _shown(kept.rows, options)
        _kept.put(key, kept)
    assert kept.shown is not None
    return kept.shown


def _without_expired(kept: KeptTable, start: int) -> KeptTable:
    """A table is what the topic holds, also where retention has let go of a key's latest value."""
    there = pc.greater_equal(kept.rows.column("pointer"), start)
    return KeptTable(kept.rows.filter(there), start, max(kept.next, start))


def _brought_up(kept: KeptTable, origin: Origin, wanted: Range) -> KeptTable:
    rows = kept.rows
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in read_range(origin, wanted, RECORD.names, skip_expired=True):
        gathered.append(batch)
        count += len(batch)
        if count >= _FOLDED_ROWS:
            rows = latest_of_each_key(pa.concat_tables([rows, pa.Table.from_batches(gathered)]), tombstones=True)
            gathered, count = [], 0
    rows = pa.concat_tables([rows, pa.Table.from_batches(gathered, SCHEMA)])
    return KeptTable(latest_of_each_key(rows, tombstones=False), kept.start, wanted.end)


def latest_of_each_key(rows: pa.Table, *, tombstones: bool) -> pa.Table:
    """The last row of each key, in the order of the rows; with `tombstones`, also those whose value is null."""
    numbered = pa.table({"key": rows.column("key"), "row": np.arange(len(rows))})
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")])
    last = last.filter(pc.is_valid(last.column("key")))
    chosen = np.sort(last.column("row_max").to_numpy())
    latest = rows.take(pa.array(chosen))
    if not tombstones:
        latest = latest.filter(pc.is_valid(latest.column("value")))
    return latest.combine_chunks()


def _shown(rows: pa.Table, options: SourceOptions) -> pa.Table:
    if options.decoder is None:
        return rows
    batches = list(decoded(iter(rows.to_batches()), options))
    return pa.Table.from_batches(batches) if batches else pa.table({})
