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

_WAITING: Final = "waiting"
_PIECE: Final = datetime.timedelta(milliseconds=1)


def in_order(frame: DataFrame, key: str, time: str, grace: Duration | None = None) -> DataFrame:
    """The same rows, with those of a key in the order of their times across batches.

    A row is kept in state until the watermark reaches its time, which takes about as long as the grace: earlier rows
    have then arrived, or are late. `grace` sets the watermark unless the frame has one, as after `Pipeline.on_time`
    (without a window), which can also deliver the late rows. Rows with equal times are in the order of their pointers,
    if they have any. A row without a time is emitted at once.

    To keep the order in the output, write it with the same key.
    """
    if time not in frame.columns or not isinstance(frame.schema[time].dataType, TimestampType):
        raise SchemaMismatchError(f"there is no column {time!r} of type timestamp to sort rows by")
    if not has_watermark(frame, time):
        if grace is None:
            raise SchemaMismatchError(
                f"{time!r} has no watermark: set grace=, the time that a row waits for earlier ones"
            )
        frame = frame.withWatermark(time, interval(microseconds(grace, "grace", zero=True)))
    releasing = InOrder(time, "pointer" if "pointer" in frame.columns else None)
    return stateful(
        frame,
        key,
        releasing.arrived,
        frame.schema,
        lists={_WAITING: frame.schema},
        timers="event",
        on_timer=releasing.due,
    )


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
            ctx.list(_WAITING).extend(waiting)
            self._wait_for(min(row[self._time] for row in waiting), ctx)

    def due(self, key: Any, at: datetime.datetime, ctx: KeyContext) -> Iterator[Row]:
        reached = ctx.watermark
        waiting = list(ctx.list(_WAITING))
        rest = [row for row in waiting if row[self._time] > reached]
        yield from self._sorted(row for row in waiting if row[self._time] <= reached)
        ctx.list(_WAITING).replace(rest)
        if rest:
            ctx.timer(_whole(min(row[self._time] for row in rest)))

    def _wait_for(self, earliest: datetime.datetime, ctx: KeyContext) -> None:
        set_already = ctx.timers()
        at = _whole(earliest)
        if not set_already or at < set_already[0]:
            for later in set_already:
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
