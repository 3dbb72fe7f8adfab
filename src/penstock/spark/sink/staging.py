"""Staging: what tasks do with the rows of a batch before any of them counts.

A task hands its rows to the driver with its result while they are few, and else writes them into a file and hands over
its name. Spark gives the driver one result for each partition, of whichever attempt came first; so a file counts if and
only if a result names it, and what failed, speculative and orphaned tasks leave behind is never looked at. A file needs
no other name while it is being written, for its name is told only when it is whole.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from penstock.spark.sink.staging_folder import StagingFolder

INLINE_BYTES: Final = 256 << 10
"""Rows of one task up to this size travel to the driver with its result: a file costs more than they do."""

STAGED: Final = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("rows", LongType(), False),
        StructField("host", StringType(), False),
        StructField("file", StringType()),
        StructField("inline", BinaryType()),
    ]
)
"""What a task that had rows tells the driver: `inline` has them as an Arrow stream, or `file` names a file that has."""

_TOLD: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), False),
        pa.field("rows", pa.int64(), False),
        pa.field("host", pa.string(), False),
        pa.field("file", pa.string()),
        pa.field("inline", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one partition, by the one attempt that counts."""

    partition: int
    rows: int
    host: str
    file: str | None
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class Stager:
    """Stages the rows of one partition: the function of a `mapInArrow`."""

    folder: StagingFolder
    batch_id: int
    inline_bytes: int = INLINE_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first, size_bytes = [], 0
        for batch in batches:
            if not batch.num_rows:
                continue
            first.append(batch)
            size_bytes += batch.nbytes
            if size_bytes > self.inline_bytes:
                yield self._written(first, batches)
                return
        if first:
            yield _told(sum(batch.num_rows for batch in first), None, _stream_of(first))

    def _written(self, first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        context = TaskContext.get()
        assert context is not None, "rows are staged by tasks of Spark"
        name = f"partition-{context.partitionId():05d}-attempt-{context.taskAttemptId()}.arrow"
        rows = 0
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.folder.create(self.batch_id, name))
            writer = stack.enter_context(pa.ipc.new_stream(file, first[0].schema))
            while first:
                rows += first[0].num_rows
                writer.write_batch(first.pop(0))
            for batch in rest:
                rows += batch.num_rows
                writer.write_batch(batch)
        return _told(rows, name, None)


def told_part(told: pa.RecordBatch) -> Part:
    """What a task has told, for who does not get it through Spark's rows."""
    (row,) = told.to_pylist()
    return Part(**row)


def _stream_of(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _told(rows: int, file: str | None, inline: bytes | None) -> pa.RecordBatch:
    context = TaskContext.get()
    assert context is not None, "rows are staged by tasks of Spark"
    columns = [[context.partitionId()], [rows], [socket.gethostname()], [file], [inline]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_TOLD)
