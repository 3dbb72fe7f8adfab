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
from penstock.log.arrow.scan import Gathered, Origin, in_chunks, scan
from penstock.log.arrow.spans import MOST_BYTES, DamagedBatch, DamagedRecord

Buffer = bytes | bytearray | memoryview | mmap.mmap

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Small enough for the columns of a chunk to be made in memory that is still warm from the one before."""

_UNKNOWN: Final = Origin()


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
    origin: Origin = _UNKNOWN,
) -> pa.RecordBatch:
    """The records of a buffer of whole record batches, as `schema(unit, views=views)`, in the order of their offsets.

    Left out: records before offset `start` and from offset `stop` on, transaction markers, and the records of `aborted`
    transactions. Those of a transaction that is still open are not: a reader of committed data sets `stop` no further
    than the last stable offset. A batch that the end of the buffer cuts off is not there yet, unless `origin` says that
    it must be.

    Damage anywhere before `stop` raises CorruptSegmentError, which names the batch, and nothing is given out.
    `verify=False` trusts the checksums, for a caller who has just checked them; all else is checked regardless.

    `views=True` gives `binary_view` and `string_view` columns that point into the buffer, where that is not compressed:
    no key or value is copied, but the buffer is kept alive and must not change while the columns are in use.

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
    origin: Origin = _UNKNOWN,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As `decode`, in RecordBatches of about `chunk_bytes` of decompressed records each, made as they are asked for.

    All that stands before a damaged batch is given out before the damage is raised. None of the RecordBatches is empty.
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes is {chunk_bytes}; a chunk holds at least one byte")
    engines.choose(engine, 0)
    schema(unit, views=views)
    rows = _Rows(partition, start, stop, engine, views, unit, origin)
    view = memoryview(buffer).cast("B")
    found = scan(view, origin, stop, aborted, verify)
    return (columns for chunk in in_chunks(view, found, origin, start, chunk_bytes) for columns in rows.of(chunk))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is asked for, the same for each chunk."""

    partition: int
    start: int | None
    stop: int | None
    engine: engines.Name
    views: bool
    unit: Unit
    origin: Origin

    def of(self, chunk: Gathered) -> Iterator[pa.RecordBatch]:
        """The chunk's records, if any is in range; where a batch is damaged, those before it and then the damage."""
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
