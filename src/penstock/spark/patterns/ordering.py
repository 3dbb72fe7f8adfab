"""Events that come out of sequence: kept for a while, and let go in the order in which they happened."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import TimestampType

from penstock.errors import SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.state import stateful
from penstock.spark.state_context import KeyContext
from penstock.spark.watermarks import has_watermark

_WAITING: Final = "waiting"
_PIECE: Final = datetime.timedelta(milliseconds=1)


def in_order(frame: DataFrame, key: str, time: str, grace: Duration | None = None) -> DataFrame:
    """The same rows; those of one key in the order of their times, over all batches.

    A row is kept until the watermark has reached it, so that everything that happened before it has come, or is late:
    it waits about as long as the grace. `grace` makes the watermark, unless the frame has one, as behind
    `Pipeline.on_time` (without a window), where the rows that come too late even so are not lost. Rows of one time stay
    in the order of their pointers if they have any. A row without a time waits for nothing.

    What stands behind it must keep the order: write it under the same key.
    """
    if time not in frame.columns or not isinstance(frame.schema[time].dataType, TimestampType):
        raise SchemaMismatchError(f"there is no column {time!r} of type timestamp to put rows in order by")
    if not has_watermark(frame, time):
        if grace is None:
            raise SchemaMismatchError(
                f"{time!r} has no watermark: say with grace= how long a row waits for earlier ones"
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
    """What is done with the rows of a key. One timer stands at the earliest of those that wait."""

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
    """Timers and watermarks count milliseconds, and this is the first that is not before the time."""
    cut = time.replace(microsecond=time.microsecond // 1_000 * 1_000)
    return cut if cut == time else cut + _PIECE
