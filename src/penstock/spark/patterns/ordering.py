"""Reordering events that arrive out of order."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import TimestampType

from penstock.errors import SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.late.watermarks import has_watermark
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful

WAITING: Final = "waiting"
"""The list of the rows of a key that the watermark has not reached, for `InOrder`."""
_PIECE: Final = datetime.timedelta(milliseconds=1)


def in_order(frame: DataFrame, key: str, time: str, grace: Duration | None = None) -> DataFrame:
    """The same rows, with those of a key in the order of their times across batches.

    A row is kept in state until the watermark reaches its time, which takes about as long as the grace: earlier rows
    have then arrived, or are late. `grace` sets the watermark unless the frame has one, as after `Pipeline.on_time`
    (without a window), which can also deliver the late rows. Rows with equal times are in the order of their pointers,
    if they have any. A row without a time is emitted at once.

    To keep the order in the output, write it with the same key.
    """
    frame = with_watermark(frame, time, grace)
    releasing = InOrder(time, pointer_of(frame))
    return stateful(
        frame,
        key,
        releasing.arrived,
        frame.schema,
        lists={WAITING: frame.schema},
        timers="event",
        on_timer=releasing.due,
    )


def with_watermark(frame: DataFrame, time: str, grace: Duration | None) -> DataFrame:
    """The frame with a watermark on its column `time`, of type timestamp. Raises SchemaMismatchError without one."""
    if time not in frame.columns or not isinstance(frame.schema[time].dataType, TimestampType):
        raise SchemaMismatchError(f"there is no column {time!r} of type timestamp to sort rows by")
    if has_watermark(frame, time):
        return frame
    if grace is None:
        raise SchemaMismatchError(f"{time!r} has no watermark: set grace=, the time that a row waits for earlier ones")
    return frame.withWatermark(time, interval(microseconds(grace, "grace", zero=True)))


def pointer_of(frame: DataFrame) -> str | None:
    """The column with the pointers of the records; None if the frame has none."""
    return next((name for name in ("record_pointer", "pointer") if name in frame.columns), None)


class InOrder:
    """The stateful functions for the rows of a key. There is one timer, for the earliest waiting row."""

    def __init__(self, time: str, pointer: str | None) -> None:
        self._time = time
        self._pointer = pointer

    def arrived(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        new = list(rows)
        waiting = [row for row in new if row[self._time] is not None]
        yield from (row for row in new if row[self._time] is None)
        if waiting:
            ctx.list(WAITING).extend(waiting)
            self.wake(min(row[self._time] for row in waiting), ctx)

    def due(self, key: Any, at: datetime.datetime, ctx: KeyContext) -> Iterator[Row]:
        reached = ctx.watermark
        waiting = self.waiting(ctx)
        rest = [row for row in waiting if row[self._time] > reached]
        yield from self._sorted(row for row in waiting if row[self._time] <= reached)
        ctx.list(WAITING).replace(rest)
        if rest:
            self.wake(min(row[self._time] for row in rest), ctx)

    def waiting(self, ctx: KeyContext) -> list[Row]:
        """The rows that the watermark has not reached."""
        return list(ctx.list(WAITING))

    def wake(self, earliest: datetime.datetime, ctx: KeyContext) -> None:
        """Have `due` called when the watermark reaches this time, or before."""
        reached = ctx.watermark
        pending = [each for each in ctx.timers() if each > reached]
        at = _whole(earliest)
        if not pending or at < pending[0]:
            for later in pending:
                ctx.cancel(later)
            ctx.timer(at)

    def _sorted(self, rows: Iterable[Row]) -> list[Row]:
        pointer = self._pointer
        if pointer is None:
            return sorted(rows, key=lambda row: row[self._time])
        return sorted(rows, key=lambda row: (row[self._time], row[pointer] is not None, row[pointer] or 0))


def _whole(time: datetime.datetime) -> datetime.datetime:
    """The time rounded up to milliseconds, the unit of timers and watermarks."""
    cut = time.replace(microsecond=time.microsecond // 1_000 * 1_000)
    return cut if cut == time else cut + _PIECE
