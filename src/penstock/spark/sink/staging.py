"""Staging: tasks hand the rows of a batch to the driver, which publishes them.

A task returns a few rows with its result; it writes many rows to a file and returns the file's name. Spark gives the
driver one result per partition, from the attempt that finished first. A file counts if and only if a result names it,
so files of failed, speculative and orphaned attempts are never read. Files need no temporary names, as a result names
only complete files.

Spark's own rows are staged in the JVM, by `RowStager` of our jar. In a session without the jar, Python workers do it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
from py4j.java_gateway import JavaClass
from pyarrow import NativeFile
from pyarrow.fs import FileSelector, FileType
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import PipelineError
from penstock.spark.jvm import jvm_of
from penstock.spark.sink.file_systems import opened, sync
from penstock.spark.values.arrow_mapping import map_in_arrow

INLINE_BYTES: Final = 256 << 10
"""Rows of one task up to this size are part of its result: a file would cost more."""

STAGED: Final = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("rows", LongType(), False),
        StructField("size_bytes", LongType(), False),
        StructField("host", StringType(), False),
        StructField("file", StringType()),
        StructField("inline", BinaryType()),
    ]
)
"""The result of a task with rows: `inline` has them as an Arrow stream, or `file` names a file with that stream."""

_RESULT: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), False),
        pa.field("rows", pa.int64(), False),
        pa.field("size_bytes", pa.int64(), False),
        pa.field("host", pa.string(), False),
        pa.field("file", pa.string()),
        pa.field("inline", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Part:
    """The staged rows of one partition."""

    partition: int
    rows: int
    size_bytes: int
    """The size of the rows in Arrow's memory."""
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
            yield _result(sum(batch.num_rows for batch in first), size_bytes, None, _stream_of(first))

    def _written(self, first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        context = TaskContext.get()
        assert context is not None, "rows are staged by tasks of Spark"
        # Numbers of attempts start again with each driver, and tasks of a dead one may still write.
        attempt = f"{context.taskAttemptId()}-{secrets.token_hex(4)}"
        name = f"partition-{context.partitionId():05d}-attempt-{attempt}.arrow"
        rows = size_bytes = 0
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.folder.create(self.batch_id, name))
            writer = stack.enter_context(pa.ipc.new_stream(file, first[0].schema))
            while first:
                rows += first[0].num_rows
                size_bytes += first[0].nbytes
                writer.write_batch(first.pop(0))
            for batch in rest:
                rows += batch.num_rows
                size_bytes += batch.nbytes
                writer.write_batch(batch)
        return _result(rows, size_bytes, name, None)


def part_of(result: pa.RecordBatch) -> Part:
    """The result of one task, which is one row."""
    (row,) = result.to_pylist()
    return Part(**row)


def _stream_of(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _result(rows: int, size_bytes: int, file: str | None, inline: bytes | None) -> pa.RecordBatch:
    context = TaskContext.get()
    assert context is not None, "rows are staged by tasks of Spark"
    columns = [[context.partitionId()], [rows], [size_bytes], [socket.gethostname()], [file], [inline]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _RESULT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_RESULT)


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """The folder `QueryIdentity.staging`, with one folder per batch, on any file system that Arrow knows."""

    path: str

    def create(self, batch_id: int, name: str) -> NativeFile:
        """Create a file and open it for writing."""
        system, path = opened(self.path)
        system.create_dir(f"{path}/{batch_id}", recursive=True)
        return system.open_output_stream(f"{path}/{batch_id}/{name}")

    def read(self, batch_id: int, name: str, host: str = "") -> NativeFile:
        """Open a file that a task on `host` has written; "": on a host that is not known."""
        system, path = opened(self.path)
        try:
            return system.open_input_stream(f"{path}/{batch_id}/{name}")
        except FileNotFoundError as error:
            raise PipelineError(
                f"{socket.gethostname()!r} cannot find {path}/{batch_id}/{name}, which a task on "
                f"{host or 'another host'!r} has staged: put the checkpoints of the pipeline where the driver and all "
                "executors see them, such as a shared folder or s3://"
            ) from error

    def batches(self, batch_id: int, name: str, host: str = "") -> Iterator[pa.RecordBatch]:
        """The rows of a file, with one Arrow batch in memory at a time."""
        with self.read(batch_id, name, host) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def missing(self, batch_id: int, names: Sequence[str]) -> list[str]:
        """The paths of those files that are not there."""
        system, path = opened(self.path)
        found = system.get_file_info([f"{path}/{batch_id}/{name}" for name in names])
        return [each.path for each in found if each.type is not FileType.File]

    def remove(self, batch_id: int) -> None:
        """Delete the files of a batch."""
        self._remove(f"/{batch_id}")

    def clear(self, keep: int | None = None) -> None:
        """Delete the files of all batches but `keep`."""
        if keep is None:
            self._remove("")
            return
        system, path = opened(self.path)
        for found in system.get_file_info(FileSelector(path, allow_not_found=True)):
            if found.base_name != str(keep):
                self._remove(f"/{found.base_name}")

    def sync(self, batch_id: int, name: str) -> None:
        """Make a file durable, and its folders' entries."""
        system, path = opened(self.path)
        for each in (f"{path}/{batch_id}/{name}", f"{path}/{batch_id}", path):
            sync(system, each)

    def _remove(self, below: str) -> None:
        system, path = opened(self.path)
        if system.get_file_info(path + below).type is not FileType.NotFound:
            system.delete_dir(path + below)


@dataclass(frozen=True, slots=True)
class Staged:
    """All staged rows of a batch. They can be read repeatedly, a few at a time."""

    folder: StagingFolder
    batch_id: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def in_files(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.file is not None)

    @property
    def inline(self) -> Staged:
        """Only the rows that came with the results of tasks."""
        return Staged(self.folder, self.batch_id, tuple(part for part in self.parts if part.inline is not None))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of their partitions, with one Arrow batch in memory at a time."""
        for part in self.parts:
            if part.inline is not None:
                with pa.ipc.open_stream(pa.py_buffer(part.inline)) as stream:
                    yield from stream
            else:
                assert part.file is not None, "a part is inline or in a file"
                yield from self.folder.batches(self.batch_id, part.file, part.host)

    def discard(self) -> None:
        """Delete the staged files: the rows are published, or will be staged again."""
        if any(part.file is not None for part in self.parts):
            self.folder.remove(self.batch_id)


class Encoding:
    """What a target makes of its rows before they are staged. Used by one run of one query.

    `encode` may depend on the columns of a frame, but not on the batch: where Spark can do it row by row, it is planned
    at the first batch, and again when the columns have changed.
    """

    def __init__(self, encode: Callable[[DataFrame], DataFrame]) -> None:
        self.encode = encode
        self._planned: Any = None

    def applied(self, frame: DataFrame) -> tuple[Any, DataFrame]:
        """A `RowStager` and the frame to give it, for this batch. None and the encoded frame in a session without."""
        if self._planned is not None and self._planned.fits(frame._jdf):
            return self._planned, frame
        encoded = self.encode(frame)
        stagers = jvm_of(frame.sparkSession).penstock.RowStager
        if not isinstance(stagers, JavaClass):  # the session has been started without our jar
            return None, encoded
        self._planned = stagers.of(encoded._jdf, frame._jdf)
        return (stagers.plain(), encoded) if self._planned is None else (self._planned, frame)


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def stage(
    frame: DataFrame,
    folder: StagingFolder,
    batch_id: int,
    inline_bytes: int = INLINE_BYTES,
    encoding: Encoding | None = None,
) -> Staged:
    """Run the tasks that compute, encode and stage the rows of a batch."""
    stager, frame = (encoding or Encoding(_as_it_is)).applied(frame)
    if stager is None:
        results = map_in_arrow(frame, Stager(folder, batch_id, inline_bytes), STAGED).toArrow()
        return Staged(folder, batch_id, in_order(Part(**row) for row in results.to_pylist()))
    system, path = opened(folder.path)
    is_local = isinstance(system, pyarrow.fs.LocalFileSystem)
    files = f"{path if is_local else folder.path}/{batch_id}"
    with tempfile.NamedTemporaryFile(prefix="penstock-staged-") as results:
        stager.stage(frame._jdf, files, is_local, inline_bytes, results.name)
        return Staged(folder, batch_id, in_order(parts_in(results.read())))


def parts_in(results: bytes) -> Iterator[Part]:
    """The parts in the results of `RowStager`, in any order."""
    at = 0

    def taken(size: int) -> bytes:
        nonlocal at
        at += size
        return results[at - size : at]

    while at < len(results):
        partition, rows, size_bytes = struct.unpack(">iqq", taken(20))
        host, file = (taken(int.from_bytes(taken(2), "big")).decode() for _ in range(2))
        inline = taken(int.from_bytes(taken(4), "big"))
        yield Part(partition, rows, size_bytes, host, file or None, None if file else inline)


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts in the order of their partitions."""
    return tuple(sorted(parts, key=lambda part: part.partition))
