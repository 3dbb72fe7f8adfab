"""What the tasks of a batch have staged, on the driver's side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.sink.staging import INLINE_BYTES, STAGED, Part, Stager
from penstock.spark.sink.staging_folder import StagingFolder


@dataclass(frozen=True, slots=True)
class Staged:
    """All rows of a batch, before any of them counts. They can be read again and again, a few at a time."""

    folder: StagingFolder
    batch_id: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of their partitions, one Arrow batch in memory at a time."""
        for part in self.parts:
            if part.inline is not None:
                with pa.ipc.open_stream(pa.py_buffer(part.inline)) as stream:
                    yield from stream
            else:
                assert part.file is not None, "a part is inline or in a file"
                with (
                    self.folder.read(self.batch_id, part.file, part.host) as file,
                    pa.ipc.open_stream(file) as stream,
                ):
                    yield from stream

    def discard(self) -> None:
        """The rows count, or will be staged anew."""
        if any(part.file is not None for part in self.parts):
            self.folder.remove(self.batch_id)


def stage(frame: DataFrame, folder: StagingFolder, batch_id: int, inline_bytes: int = INLINE_BYTES) -> Staged:
    """Have the rows of a batch made and staged by tasks."""
    told = map_in_arrow(frame, Stager(folder, batch_id, inline_bytes), STAGED).toArrow()
    return Staged(folder, batch_id, parts_of(told))


def parts_of(told: pa.Table) -> tuple[Part, ...]:
    """What tasks have told, in the order of their partitions."""
    return tuple(sorted((Part(**row) for row in told.to_pylist()), key=lambda part: part.partition))
