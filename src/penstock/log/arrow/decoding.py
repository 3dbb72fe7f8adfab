"""From a buffer of record batches to Arrow."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.log.aborted import AbortedTransaction
from penstock.log.arrow import engines
from penstock.log.arrow.columns import Unit, record_batch, schema
from penstock.log.arrow.scan import BufferOrigin, Gathered, in_chunks, scan
from penstock.log.arrow.spans import MOST_BYTES, DamagedBatch, DamagedRecord

Buffer = bytes | bytearray | memoryview | mmap.mmap

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Small enough that the columns of a chunk reuse memory that is still in the cache."""

_UNKNOWN: Final = BufferOrigin()


def decode(
    buffer: Buffer,
    *,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    aborted: Iterable[AbortedTransaction] = (),
    engine: engines.Name = "auto",
    verify: bool = True,
    views: bool = False,
    unit: Unit = "ms",
    origin: BufferOrigin = _UNKNOWN,
) -> pa.RecordBatch:
    """Decode a buffer of whole record batches, as `schema(unit, views=views)`, in the order of their offsets.

    Left out are records before offset `start` and from offset `stop` on, transaction markers, and records of `aborted`
    transactions. Records of open transactions are not left out: a reader of committed data sets `stop` to the last
    stable offset at most. A batch cut off by the end of the buffer is ignored, unless `origin` says that it must be
    whole.

    Damage anywhere before `stop` raises CorruptSegmentError, which names the batch, and nothing is returned.
    `verify=False` skips the checksums, for callers who have just checked them; everything else is still checked.

    `views=True` gives `binary_view` and `string_view` columns that point into the buffer where it is not compressed: no
    key or value is copied, but the buffer stays alive and must not change while the columns are in use.

    All records must fit into 2 GiB, decompressed; `decode_in_chunks` has no such limit.
    """
    chunks = decode_in_chunks(
        buffer,
        partition=partition,
        start=start,
        stop=stop,
        aborted=aborted,
        engine=engine,
        verify=verify,
        views=views,
        unit=unit,
        origin=origin,
        chunk_bytes=MOST_BYTES,
    )
    first = next(chunks, None)
    if first is None:
        columns = schema(unit, views=views)
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in columns], schema=columns)
    if next(chunks, None) is not None:
        raise ValueError(
            f"{origin.file} holds more than 2 GiB of records, too many for one RecordBatch: use decode_in_chunks, or "
            "choose a shorter range with start and stop"
        )
    return first


def decode_in_chunks(
    buffer: Buffer,
    *,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    aborted: Iterable[AbortedTransaction] = (),
    engine: engines.Name = "auto",
    verify: bool = True,
    views: bool = False,
    unit: Unit = "ms",
    origin: BufferOrigin = _UNKNOWN,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Like `decode`, but in RecordBatches of about `chunk_bytes` of decompressed records each, created on demand.

    Everything before a damaged batch is returned before the damage is raised. No RecordBatch is empty.
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes} must be an integer >= 1")
    engines.choose(engine, 0)
    schema(unit, views=views)
    rows = _Rows(partition, start, stop, engine, views, unit, origin)
    view = memoryview(buffer).cast("B")
    found = scan(view, origin, stop, aborted, verify)
    return (columns for chunk in in_chunks(view, found, origin, start, chunk_bytes) for columns in rows.of(chunk))


@dataclass(frozen=True, slots=True)
class _Rows:
    partition: int
    start: int | None
    stop: int | None
    engine: engines.Name
    views: bool
    unit: Unit
    origin: BufferOrigin

    def of(self, chunk: Gathered) -> Iterator[pa.RecordBatch]:
        """The chunk's records, if any is in range; if a batch is damaged, those before it and then the error."""
        try:
            columns = self._columns(chunk)
        except DamagedBatch as error:
            bad, reason = chunk.found[error.index], str(error)
            if error.index:
                yield from self.of(chunk.cut(error.index))
            raise self.origin.damage(bad.position, bad.header.base_offset, reason) from None
        if len(columns):
            yield columns

    def _columns(self, chunk: Gathered) -> pa.RecordBatch:
        batches = chunk.batches
        engine = engines.choose(self.engine, len(batches.data))
        records = engine.records(batches)
        rows = records.rows_between(self.start, self.stop)
        timestamp_type = np.repeat((1 - batches.own_time).astype(np.int32), batches.count)[rows]
        records = records.cut(rows)
        try:
            return record_batch(engine, batches.data, records, timestamp_type, self.partition, self.unit, self.views)
        except DamagedRecord as error:
            index = int(np.searchsorted(batches.base_offset, records.offset[error.index], side="right")) - 1
            raise DamagedBatch(index, error.reason) from None
