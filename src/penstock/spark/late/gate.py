"""`OnTimeGate`: keeps late rows, which plain Spark drops silently.

Spark's stateful operators compare rows with an internal watermark and drop late ones. A gate in front of them computes
the same watermark (from the same rows and the same grace), and holds back every row that no operator would accept. So
operators behind the gate drop nothing.

The watermark of a batch is the latest event time of all earlier batches minus the grace, and never decreases. Spark
itself drops by the watermark of one batch earlier. A row that Spark would drop or keep depending on how records fall
into batches is therefore always late here. A batch that is repeated after a crash has the same late rows.

With overlapping windows, a row may be on time for its last window and late for earlier ones. It passes the gate, and
Spark adds it to its open windows only. Such a row is among the late rows, too: their column `late_windows` lists the
windows that the row missed, which are all of its windows if it was held back.

A pipeline uses a gate inside foreachBatch, after it has delivered the batch itself:

    held = gate.staged(spark, query_id, batch_id)    # the late rows of this batch, if there are any
    ...                                              # deliver held.frame
    gate.finish(query_id, batch_id)                  # then advance the watermark for the next batch
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructField, StructType, TimestampNTZType, TimestampType

from penstock.errors import ConfigError, PipelineError, SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.late.files import GateFiles, TaskAttempt, read_late_file
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.sink.file_systems import opened
from penstock.spark.values.arrow_mapping import map_in_arrow

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark's job group of a query, which is the id of its run."""

LATE_WINDOWS: Final = "late_windows"
"""The column of late rows with the windows that each missed, if windows overlap."""

FIRST_WATERMARK_MS: Final = 0
"""Spark's watermark before the first row: the start of 1970. Earlier rows are always late."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_known: dict[tuple[str, str, str], tuple[int, int]] = {}
"""In the process of a task, the last batch of each gate, and its watermark."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """The late rows of one batch."""

    frame: DataFrame
    """The rows, with the columns of `OnTimeGate.schema`. They are read from files that `finish` deletes."""
    rows: int
    without_time: int
    """How many of them have no event time, and so belong to no window."""


@dataclass(frozen=True, slots=True)
class WindowEnds:
    """When the last of the windows that an event belongs to closes, in microseconds."""

    size_us: int = 0
    slide_us: int = 0
    """0 without time windows: the end is then `size_us` after the event, the gap of a session or 0."""
    offset_us: int = 0

    def last_of(self, times_us: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not self.slide_us:
            return times_us + self.size_us
        start_us: np.ndarray[Any, np.dtype[np.int64]] = (times_us - self.offset_us) // self.slide_us * self.slide_us
        return start_us + (self.offset_us + self.size_us)

    @property
    def overlaps(self) -> bool:
        """Whether an event may belong to several windows."""
        return 0 < self.slide_us < self.size_us

    def first_of(self, times_us: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """When the first window of each event closes: the first end after its time."""
        since_us = self.size_us + self.offset_us
        first_us: np.ndarray[Any, np.dtype[np.int64]] = (times_us - since_us) // self.slide_us * self.slide_us
        return first_us + since_us + self.slide_us


class OnTimeGate:
    """Passes rows that are on time, and writes late ones to files below `side`, a folder that all tasks reach.

    A row is late if every window that it belongs to has closed: windows of size `window` that begin every `slide` (the
    default is one after the other), shifted by `offset`; or sessions that end after `gap`. Without windows, a row is
    late if its time is not after the watermark, as for joins, deduplication and state. The arguments must match the
    operator after the gate.

    `name` identifies the gate in its pipeline. A gate is for one frame, which may be used in several queries; each of
    them has its own watermark.
    """

    def __init__(
        self,
        name: str,
        column: str,
        window: Duration | None = None,
        slide: Duration | None = None,
        grace: Duration = "0 seconds",
        gap: Duration | None = None,
        side: str = "",
        offset: Duration | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"gate name {name!r} is not allowed: use letters, digits, '-', '_' and '.'")
        if not side:
            raise ConfigError(f"gate {name} needs a folder for late rows")
        self.name = name
        self.column = column
        self.side = StateFolder(side).path
        self._grace_ms = microseconds(grace, "grace", zero=True) // 1_000
        self._window_ends = _window_ends(window, slide, gap, offset)
        self._schema: StructType | None = None

    @property
    def marker(self) -> str:
        """The name in the plan of every frame behind this gate."""
        return f"on_time__{self.name}__"

    @property
    def schema(self) -> StructType:
        """The columns of late rows: those of the input, and `late_windows` if windows overlap."""
        if self._schema is None:
            raise ConfigError(f"gate {self.name} has no frame yet: apply it to one")
        if not self._window_ends.overlaps:
            return self._schema
        time = self._schema[self.column].dataType
        window = StructType([StructField("start", time, False), StructField("end", time, False)])
        return StructType([*self._schema.fields, StructField(LATE_WINDOWS, ArrayType(window, False), False)])

    def apply(self, frame: DataFrame) -> DataFrame:
        """The frame without its late rows, with a watermark on its event time.

        A batch frame is returned unchanged: none of its rows is late.
        """
        if self._schema is not None:
            raise ConfigError(f"gate {self.name} is already applied to a frame: create another one")
        _require_time(frame, self.column)
        if self._window_ends.overlaps and LATE_WINDOWS in frame.columns:
            raise SchemaMismatchError(
                f"the frame has a column {LATE_WINDOWS!r}, which late rows need for their windows: rename it"
            )
        self._schema = without_watermarks(frame.schema)
        if not frame.isStreaming:
            return frame
        opened(self.side)  # raises ConfigError for a folder that tasks cannot reach
        policy = frame.sparkSession.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
        if policy != "min":
            raise ConfigError(
                f"spark.sql.streaming.multipleWatermarkPolicy is {policy}: the fastest stream would decide what is late"
                " in the others, and their gates would not notice. Set it to min"
            )
        kept = map_in_arrow(frame, self._filter(frame.columns.index(self.column)), self._schema)
        return kept.withWatermark(self.column, interval(self._grace_ms * 1_000))

    def is_in(self, frame: DataFrame) -> bool:
        """Whether rows of this frame pass this gate."""
        plan = frame._jdf.queryExecution().analyzed().toString()
        return f"{self.marker}(" in plan

    def staged(
        self, spark: SparkSession, query_id: str, batch_id: int, dropped_up_to_ms: int | None = None
    ) -> LateRows | None:
        """The late rows of a batch whose other rows are all processed; None if there are none.

        `dropped_up_to_ms` is the watermark by which Spark dropped rows in this batch; the default is this gate's
        watermark of the previous batch, which is the same unless the query has several gates.
        """
        run = _run(spark.sparkContext.getLocalProperty(RUN_ID))
        found = [held for held in self._files(query_id).late_files(batch_id, run) if held.rows is not None]
        if not found:
            return None
        paths = [held.rows for held in found if held.rows is not None]
        slices = min(len(paths), max(1, spark.sparkContext.defaultParallelism))
        numbers = spark.range(0, len(paths), 1, slices)
        without_time = sum(held.without_time for held in found)
        if not self._window_ends.overlaps:
            frame = numbers.mapInArrow(_reader(paths, self.side), self.schema)
            return LateRows(frame, sum(held.late for held in found), without_time)
        if dropped_up_to_ms is None:
            dropped_up_to_ms = self.watermark_ms(query_id, batch_id - 1)
        missed = _Missed(
            self.schema.names.index(self.column),
            self._window_ends,
            self.watermark_ms(query_id, batch_id) * 1_000,
            dropped_up_to_ms * 1_000,
        )
        frame = numbers.mapInArrow(_reader(paths, self.side, missed), self.schema)
        rows = frame.count()
        return LateRows(frame, rows, without_time) if rows else None

    def finish(self, query_id: str, batch_id: int) -> None:
        """Advance the watermark and delete the late rows of a batch that is delivered with them. Idempotent."""
        files = self._files(query_id)
        watermarks = files.watermarks()
        before_ms = _at(watermarks, batch_id)
        next_ms = max(before_ms, watermarks.get(batch_id + 1, before_ms))
        latest_us = files.latest_us(batch_id)
        if latest_us is not None:
            next_ms = max(next_ms, latest_us // 1_000 - self._grace_ms)
        past = {batch: at_ms for batch, at_ms in watermarks.items() if batch <= batch_id}
        changed = past | ({batch_id + 1: next_ms} if next_ms > before_ms or not past else {})
        if changed != watermarks:
            files.write_watermarks(changed)
        files.forget(batch_id)

    def watermark_ms(self, query_id: str, batch_id: int) -> int:
        """The watermark of this batch, in milliseconds since 1970."""
        return _at(self._files(query_id).watermarks(), batch_id)

    def adopt(self, query_id: str, batch_id: int, watermark_ms: int) -> None:
        """Continue from Spark's own watermark, for a query that ran without this gate up to `batch_id`.

        Does nothing if the gate already has watermarks of the query.
        """
        files = self._files(query_id)
        if not files.watermarks():
            files.write_watermarks({batch_id: watermark_ms})

    def _files(self, query_id: str) -> GateFiles:
        return GateFiles(self.side, query_id, self.name)

    def _filter(self, index: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        name, side, ends = self.name, self.side, self._window_ends

        def on_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _on_time(batches, index, ends, side, name)

        on_time.__name__ = on_time.__qualname__ = self.marker
        return on_time


def dropped_late(progress: Mapping[str, Any]) -> int:
    """The number of rows that Spark itself dropped as late, by the progress of a batch.

    Operators combine rows before they compare times, so several late rows may count as one. With overlapping windows,
    each closed window of an event counts.
    """
    return sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])


def _window_ends(
    window: Duration | None, slide: Duration | None, gap: Duration | None, offset: Duration | None
) -> WindowEnds:
    if gap is not None:
        if window is not None or slide is not None or offset is not None:
            raise ConfigError("gap is for session windows: it cannot be combined with window, slide or offset")
        return WindowEnds(microseconds(gap, "gap"))
    if window is None:
        if slide is not None or offset is not None:
            raise ConfigError("slide and offset need the size of the window: set window")
        return WindowEnds()
    size_us = microseconds(window, "window")
    slide_us = size_us if slide is None else microseconds(slide, "slide")
    if slide_us > size_us:
        raise ConfigError(f"slide {slide!r} is longer than window {window!r}: events in between belong to no window")
    return WindowEnds(size_us, slide_us, 0 if offset is None else microseconds(offset, "offset", zero=True))


def _require_time(frame: DataFrame, column: str) -> None:
    if frame.columns.count(column) != 1:
        raise SchemaMismatchError(
            f"there is {'no' if column not in frame.columns else 'more than one'} column {column!r} for the event"
            f" time: the frame has {', '.join(frame.columns)}"
        )
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise SchemaMismatchError(
            f"column {column!r} is {kind.simpleString()}, but the event time must be a timestamp: cast it"
        )


def _at(watermarks: Mapping[int, int], batch_id: int) -> int:
    reached = [batch for batch in watermarks if batch <= batch_id]
    return watermarks[max(reached)] if reached else FIRST_WATERMARK_MS


def _on_time(
    batches: Iterator[pa.RecordBatch], index: int, ends: WindowEnds, side: str, gate: str
) -> Iterator[pa.RecordBatch]:
    """In a task: pass on the rows that are on time, and write the others to a file."""
    task = TaskContext.get()
    query_id = task.getLocalProperty(QUERY_ID) if task is not None else None
    if task is None or query_id is None:
        raise PipelineError(f"gate {gate} works only in streaming queries")
    batch_id = int(task.getLocalProperty(BATCH_ID) or 0)
    files = GateFiles(side, query_id, gate)
    watermark_us = _watermark_ms(files, (side, query_id, gate), batch_id) * 1_000
    attempt = TaskAttempt(_run(task.getLocalProperty(RUN_ID)), task.stageId(), task.partitionId(), task.taskAttemptId())
    writer, latest_us = None, None
    try:
        for batch in batches:
            if writer is None:
                writer = files.writer(batch_id, attempt, batch.schema)
            times = batch.column(index)
            times_us = times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            known = times.is_valid().to_numpy(zero_copy_only=False)
            if known.any():
                newest_us = int(times_us[known].max())
                latest_us = newest_us if latest_us is None else max(latest_us, newest_us)
            keep = known & (ends.last_of(times_us) > watermark_us)
            late = ~keep
            if ends.overlaps:  # rows that pass, but may be dropped from some of their windows
                late |= ends.first_of(times_us) <= watermark_us
            if late.any():
                writer.add(batch.filter(pa.array(late)), int((~known).sum()))
            if keep.all():
                yield batch
            elif keep.any():
                yield batch.filter(pa.array(keep))
        if writer is not None:
            writer.finish(latest_us)
    finally:
        if writer is not None:
            writer.abandon()


def _run(group: str | None) -> str:
    """The run as the name of a folder. The job group may be the user's own, with other characters."""
    return _NOT_IN_NAMES.sub("_", group or "none")


def _watermark_ms(files: GateFiles, gate: tuple[str, str, str], batch_id: int) -> int:
    asked, watermark_ms = _known.get(gate, (None, 0))
    if asked == batch_id:
        return watermark_ms
    watermarks = files.watermarks()
    if not watermarks and batch_id > 0:
        raise PipelineError(
            f"gate {gate[2]} has no watermark for batch {batch_id}: its folder {gate[0]} was emptied, or the query ran"
            " without the gate before. Restore the folder, or start the pipeline with a new checkpoint"
        )
    watermark_ms = _at(watermarks, batch_id)
    _known[gate] = (batch_id, watermark_ms)
    return watermark_ms


@dataclass(frozen=True, slots=True)
class _Missed:
    """Adds the missed windows to late rows, and drops rows that missed none."""

    index: int
    ends: WindowEnds
    held_up_to_us: int
    """The gate's watermark: rows whose windows had all closed by then were held back."""
    dropped_up_to_us: int
    """Spark's watermark: it dropped the other rows from windows that had closed by then."""

    def added_to(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        times = rows.column(self.index)
        times_us = times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        known = times.is_valid().to_numpy(zero_copy_only=False)
        first_us, last_us = self.ends.first_of(times_us), self.ends.last_of(times_us)
        missed: list[list[dict[str, int]]] = []
        for has_time, first, last in zip(known, first_us.tolist(), last_us.tolist(), strict=True):
            until = last if last <= self.held_up_to_us else self.dropped_up_to_us
            ends = range(first, last + 1, self.ends.slide_us) if has_time else ()
            missed.append([{"start": end - self.ends.size_us, "end": end} for end in ends if end <= until])
        window = pa.struct([pa.field("start", times.type, False), pa.field("end", times.type, False)])
        column = pa.array(missed, pa.list_(pa.field("element", window, False)))
        keep = pa.array([not has_time or bool(each) for has_time, each in zip(known, missed, strict=True)])
        return pa.RecordBatch.from_arrays([*rows.columns, column], [*rows.schema.names, LATE_WINDOWS]).filter(keep)


def _reader(
    paths: list[str], side: str, missed: _Missed | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_late(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with read_late_file(paths[number], side) as held:
                    for index in range(held.num_record_batches):
                        rows = held.get_batch(index)
                        yield rows if missed is None else missed.added_to(rows)

    return read_late
