"""Late rows: counted and kept, where plain Spark drops them without a word.

Inside its stateful operators Spark compares rows with a watermark that nobody else can see, and drops those that come
too late. So a gate stands in front of them, which knows the same watermark (the same rows have passed, the same grace
holds) and holds back, first, every row that no operator would take. What is behind the gate loses nothing.

The watermark of a batch is the latest event time in all batches before it, less the grace, and it never goes back.
Spark itself looks one batch further back when it drops, so that a row which Spark might or might not have taken,
depending on when its batches happened to begin, is late here, always. A batch that is repeated after a crash is judged
as it was.

What a pipeline does with a gate, from inside foreachBatch, once the batch itself has been delivered:

    held = gate.staged(spark, query_id, batch_id)    # the late rows of this batch, if there are any
    ...                                              # deliver held.frame
    gate.finish(query_id, batch_id)                  # only then: what comes next is judged by what came now
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
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from penstock.errors import ConfigError, PipelineError, SchemaMismatchError
from penstock.spark.arrow_mapping import map_in_arrow
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.late_files import GateFiles, TaskPlace, filesystem_of, read_held, rooted
from penstock.spark.watermarks import without_watermarks

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark runs all jobs of a query in a group that is called by the id of the run."""

FIRST_WATERMARK_MS: Final = 0
"""Spark's watermark before the first row: the beginning of 1970. Rows from before it are late at once."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_known: dict[tuple[str, str, str], tuple[int, int]] = {}
"""In the process of a task, for each gate: the batch it was asked about last, and the watermark of that."""


@dataclass(frozen=True, slots=True)
class LateRows:
    """What a gate held back in one batch."""

    frame: DataFrame
    """The rows as they came, with the columns that came into the gate. It is read from files that `finish` removes."""
    rows: int
    without_time: int
    """How many of them have no event time at all: they belong to no window, and are here because nothing vanishes."""


@dataclass(frozen=True, slots=True)
class Closing:
    """When the last of the windows that an event belongs to closes, in microseconds."""

    size_us: int = 0
    slide_us: int = 0
    """0: there are no windows on the clock. `size_us` after the event is then the end: a session's gap, or nothing."""
    offset_us: int = 0

    def of(self, times_us: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not self.slide_us:
            return times_us + self.size_us
        start_us: np.ndarray[Any, np.dtype[np.int64]] = (times_us - self.offset_us) // self.slide_us * self.slide_us
        return start_us + (self.offset_us + self.size_us)


class OnTimeGate:
    """Lets through what is on time, and keeps what is late in files below `side`, a folder that all tasks reach.

    A row is late when every window it belongs to has closed: windows of `window` which begin every `slide` (by default
    one after the other), shifted by `offset`; or sessions that end after `gap`; or, without either, when its own time
    is not after the watermark, as joins, deduplication and state judge it. Say what the operator behind the gate does:
    it is its rows that shall not vanish.

    `name` tells apart the gates of a pipeline. One gate serves one frame, in as many queries as that is used in; each
    query judges for itself.
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
            raise ConfigError(f"a gate cannot be called {name!r}: use letters, digits, '-', '_' and '.'")
        if not side:
            raise ConfigError(f"gate {name} needs a folder for the rows that it holds back")
        self.name = name
        self.column = column
        self.side = rooted(side)
        self._grace_ms = microseconds(grace, "grace", zero=True) // 1_000
        self._closing = _closing(window, slide, gap, offset)
        self._schema: StructType | None = None

    @property
    def marker(self) -> str:
        """What stands in the plan of every frame behind this gate."""
        return f"on_time__{self.name}__"

    @property
    def schema(self) -> StructType:
        """The columns of its late rows."""
        if self._schema is None:
            raise ConfigError(f"gate {self.name} stands in front of nothing yet: apply it to a frame")
        return self._schema

    def apply(self, frame: DataFrame) -> DataFrame:
        """The frame without its late rows, with a watermark on its event time.

        A batch frame comes back as it is: all its rows are there at once, and none is late.
        """
        if self._schema is not None:
            raise ConfigError(f"gate {self.name} has been applied to a frame already: make another one")
        _require_time(frame, self.column)
        self._schema = without_watermarks(frame.schema)
        if not frame.isStreaming:
            return frame
        filesystem_of(self.side)  # refuses a folder that tasks would not reach
        policy = frame.sparkSession.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
        if policy != "min":
            raise ConfigError(
                f"spark.sql.streaming.multipleWatermarkPolicy is {policy}: the fastest stream would decide what is late"
                " in the others, behind the back of their gates. Leave it at min"
            )
        kept = map_in_arrow(frame, self._judge(frame.columns.index(self.column)), self._schema)
        return kept.withWatermark(self.column, interval(self._grace_ms * 1_000))

    def is_in(self, frame: DataFrame) -> bool:
        """Whether rows of this frame come through this gate."""
        plan = frame._jdf.queryExecution().analyzed().toString()
        return f"{self.marker}(" in plan

    def staged(self, spark: SparkSession, query_id: str, batch_id: int) -> LateRows | None:
        """The late rows of a batch whose other rows have all been processed; None when there are none."""
        run = _run(spark.sparkContext.getLocalProperty(RUN_ID))
        found = [held for held in self._files(query_id).held(batch_id, run) if held.rows is not None]
        if not found:
            return None
        paths = [held.rows for held in found if held.rows is not None]
        slices = min(len(paths), max(1, spark.sparkContext.defaultParallelism))
        frame = spark.range(0, len(paths), 1, slices).mapInArrow(_reader(paths, self.side), self.schema)
        return LateRows(frame, sum(held.late for held in found), sum(held.without_time for held in found))

    def finish(self, query_id: str, batch_id: int) -> None:
        """The batch is done, with its late rows: move the watermark, and forget them. To repeat it changes nothing."""
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
        """What this batch is judged by, in milliseconds since 1970."""
        return _at(self._files(query_id).watermarks(), batch_id)

    def adopt(self, query_id: str, batch_id: int, watermark_ms: int) -> None:
        """Go on from Spark's own watermark, for a query that ran without this gate up to `batch_id`.

        Nothing happens if the gate knows the query already.
        """
        files = self._files(query_id)
        if not files.watermarks():
            files.write_watermarks({batch_id: watermark_ms})

    def _files(self, query_id: str) -> GateFiles:
        return GateFiles(self.side, query_id, self.name)

    def _judge(self, index: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        name, side, closing = self.name, self.side, self._closing

        def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _on_time(batches, index, closing, side, name)

        judge.__name__ = judge.__qualname__ = self.marker
        return judge


def dropped_late(progress: Mapping[str, Any]) -> int:
    """How many rows Spark itself dropped as late, by the progress of a batch: what no gate has held back.

    Operators combine rows before they look at the time, so that several late rows may count as one; and of an event in
    several windows that overlap, each window that has closed counts.
    """
    return sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])


def _closing(window: Duration | None, slide: Duration | None, gap: Duration | None, offset: Duration | None) -> Closing:
    if gap is not None:
        if window is not None or slide is not None or offset is not None:
            raise ConfigError("gap is for session windows: it goes with neither window, slide nor offset")
        return Closing(microseconds(gap, "gap"))
    if window is None:
        if slide is not None or offset is not None:
            raise ConfigError("slide and offset say where windows begin: give the size of the window too")
        return Closing()
    size_us = microseconds(window, "window")
    slide_us = size_us if slide is None else microseconds(slide, "slide")
    if slide_us > size_us:
        raise ConfigError(f"slide {slide!r} is longer than window {window!r}: events in between belong to no window")
    return Closing(size_us, slide_us, 0 if offset is None else microseconds(offset, "offset", zero=True))


def _require_time(frame: DataFrame, column: str) -> None:
    if frame.columns.count(column) != 1:
        raise SchemaMismatchError(
            f"there is {'no' if column not in frame.columns else 'more than one'} column {column!r} to take the event"
            f" time from: the frame has {', '.join(frame.columns)}"
        )
    kind = frame.schema[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise SchemaMismatchError(
            f"column {column!r} is {kind.simpleString()}, and an event time is a timestamp: cast it"
        )


def _at(watermarks: Mapping[int, int], batch_id: int) -> int:
    reached = [batch for batch in watermarks if batch <= batch_id]
    return watermarks[max(reached)] if reached else FIRST_WATERMARK_MS


def _on_time(
    batches: Iterator[pa.RecordBatch], index: int, closing: Closing, side: str, gate: str
) -> Iterator[pa.RecordBatch]:
    """Inside a task: pass on what is on time. What is late counts once all rows of the partition have been seen."""
    task = TaskContext.get()
    query_id = task.getLocalProperty(QUERY_ID) if task is not None else None
    if task is None or query_id is None:
        raise PipelineError(f"gate {gate} judges the batches of streaming queries, and this is none")
    batch_id = int(task.getLocalProperty(BATCH_ID) or 0)
    files = GateFiles(side, query_id, gate)
    watermark_us = _watermark_ms(files, (side, query_id, gate), batch_id) * 1_000
    place = TaskPlace(_run(task.getLocalProperty(RUN_ID)), task.stageId(), task.partitionId(), task.taskAttemptId())
    holding, latest_us = None, None
    try:
        for batch in batches:
            if holding is None:
                holding = files.holding(batch_id, place, batch.schema)
            times = batch.column(index)
            times_us = times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            known = times.is_valid().to_numpy(zero_copy_only=False)
            if known.any():
                newest_us = int(times_us[known].max())
                latest_us = newest_us if latest_us is None else max(latest_us, newest_us)
            keep = known & (closing.of(times_us) > watermark_us)
            if keep.all():
                yield batch
                continue
            holding.add(batch.filter(pa.array(~keep)), int((~known).sum()))
            if keep.any():
                yield batch.filter(pa.array(keep))
        if holding is not None:
            holding.finish(latest_us)
    finally:
        if holding is not None:
            holding.abandon()


def _run(group: str | None) -> str:
    """The run, as a folder is called after it: whoever evaluates a frame may have put the job into another group."""
    return _NOT_IN_NAMES.sub("_", group or "none")


def _watermark_ms(files: GateFiles, gate: tuple[str, str, str], batch_id: int) -> int:
    asked, watermark_ms = _known.get(gate, (None, 0))
    if asked == batch_id:
        return watermark_ms
    watermarks = files.watermarks()
    if not watermarks and batch_id > 0:
        raise PipelineError(
            f"gate {gate[2]} does not know the watermark of batch {batch_id}: its folder {gate[0]} was emptied, or the"
            " query ran without it before. Restore the folder, or start the pipeline with a new checkpoint"
        )
    watermark_ms = _at(watermarks, batch_id)
    _known[gate] = (batch_id, watermark_ms)
    return watermark_ms


def _reader(paths: list[str], side: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_late(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with read_held(paths[number], side) as held:
                    for place in range(held.num_record_batches):
                        yield held.get_batch(place)

    return read_late
