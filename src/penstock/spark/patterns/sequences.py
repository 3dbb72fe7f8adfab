"""Sequences of events of one key, such as three declines, then an approval."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, microseconds
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.patterns.ordering import WAITING, InOrder, pointer_of, with_watermark
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from penstock.spark.values.columns import require_columns

MOST_STEPS: Final = 60
RECENT: Final = "recent"
"""The rows that may be part of a match which is not complete."""
STEPS: Final = "_steps"
"""For each row, the steps whose conditions it meets, as bits."""
_ADDED: Final = ("started", "ended", "events")


def sequence(
    frame: DataFrame,
    key: str | Sequence[str],
    time: str,
    steps: Sequence[str | Column],
    within: Duration,
    *,
    adjacent: bool = False,
    overlapping: bool = False,
    grace: Duration | None = None,
) -> DataFrame:
    """The rows of a key that meet one condition after another: a row for each match.

    Three declines, then an approval, within five minutes, by card:

        sequence(payments, "card", "at", ["outcome = 'declined'"] * 3 + ["outcome = 'approved'"], "5 minutes")

    Rows are taken in the order of their `time`, and of their pointers where times are equal. A match begins with a row
    that meets the first condition, and each following step takes the next row that meets its condition. The last may be
    up to `within` after the first. Other rows may lie between; with `adjacent`, none of the same key may.

    Without `overlapping`, a match ends all others that have begun: its rows, and those between them, are part of no
    other match. Of several that the same row completes, the one that began first counts. With `overlapping`, each row
    that meets the first condition begins a match of its own, so a row may be part of several.

    The result has the columns of the key, `started` and `ended`, the times of the first and the last row, and `events`,
    the rows of the match, one for each step. A match is emitted once the watermark reaches its last row; rows that
    arrive later take no part. `grace` sets the watermark unless the frame has one, as after `Pipeline.on_time` (without
    a window). Rows without a time take no part. State has the rows that wait for the watermark, and those of matches
    that can still be completed.
    """
    keys = [key] if isinstance(key, str) else list(key)
    require_columns(frame.columns, keys, " for the key", at_least_one=True)
    if isinstance(steps, str | Column) or not 2 <= len(steps) <= MOST_STEPS:
        raise ConfigError(f"a sequence has 2 to {MOST_STEPS} steps: give a list with a condition for each")
    taken = ", ".join(sorted({*_ADDED, STEPS} & set(keys)))
    if taken:
        raise SchemaMismatchError(f"the key has a column {taken}, which the result has, too: rename it")
    within_us = microseconds(within, "within")
    timely = with_watermark(frame, time, grace)
    met = [F.when(F.expr(step) if isinstance(step, str) else step, 1 << place) for place, step in enumerate(steps)]
    bits = F.lit(0).cast("long")
    for each in met:
        bits = bits + F.coalesce(each.cast("long"), F.lit(0).cast("long"))
    marked = timely.withColumn(STEPS, bits)
    schema = without_watermarks(timely.schema)
    kept = StructType([*schema.fields, StructField(STEPS, LongType())])
    output = StructType(
        [
            *(schema[name] for name in keys),
            StructField("started", TimestampType()),
            StructField("ended", TimestampType()),
            StructField("events", ArrayType(schema)),
        ]
    )
    matching = Sequences(
        InOrder(time, pointer_of(timely)),
        time,
        schema.names,
        len(steps),
        datetime.timedelta(microseconds=within_us),
        adjacent=adjacent,
        overlapping=overlapping,
    )
    return stateful(
        marked if adjacent else marked.where(F.col(STEPS) != 0),
        keys,
        matching.arrived,
        output,
        lists={WAITING: kept, RECENT: kept},
        timers="event",
        on_timer=matching.due,
    )


class Sequences:
    """The stateful functions of one key.

    Matches that are not complete are not stored: the rows since the first of them began are, and lead to them again.
    """

    def __init__(
        self,
        order: InOrder,
        time: str,
        columns: Sequence[str],
        steps: int,
        within: datetime.timedelta,
        *,
        adjacent: bool,
        overlapping: bool,
    ) -> None:
        self._order = order
        self._time = time
        self._row_of = Row(*columns)
        self._steps = steps
        self._within = within
        self._adjacent = adjacent
        self._overlapping = overlapping

    def arrived(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> None:
        for _ in self._order.arrived(key, rows, ctx):
            pass  # rows without a time

    def due(self, key: Any, at: datetime.datetime, ctx: KeyContext) -> Iterator[tuple[Any, ...]]:
        recent = list(ctx.list(RECENT))
        rows = [*recent, *self._order.due(key, at, ctx)]
        begun: list[list[int]] = []
        for number in range(len(rows)):
            begun, complete = self._advanced(begun, rows, number)
            if number >= len(recent):
                for match in complete:
                    yield self._output(key, [rows[each] for each in match])
        # Rows to come are after the watermark.
        begun = [match for match in begun if self._ends(rows[match[0]]) > ctx.watermark]
        kept = rows[min(match[0] for match in begun) :] if begun else []
        if kept != recent:
            ctx.list(RECENT).replace(kept)
        if kept:
            self._order.wake(self._ends(kept[0]), ctx)

    def _advanced(
        self, begun: list[list[int]], rows: Sequence[Row], number: int
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The matches that have begun after a row, in the order of their beginnings, and those that it completes."""
        row = rows[number]
        steps, when = row[STEPS], row[self._time]
        going_on: list[list[int]] = []
        complete: list[list[int]] = []
        for match in begun:
            if when > self._ends(rows[match[0]]):
                continue
            if steps >> len(match) & 1:
                match = [*match, number]
                (complete if len(match) == self._steps else going_on).append(match)
            elif not self._adjacent:
                going_on.append(match)
        if complete and not self._overlapping:
            return [], complete[:1]
        if steps & 1:
            going_on.append([number])
        return going_on, complete

    def _ends(self, first: Row) -> datetime.datetime:
        """Until when a match that begins with this row can be completed."""
        ends: datetime.datetime = first[self._time] + self._within
        return ends

    def _output(self, key: Any, match: Sequence[Row]) -> tuple[Any, ...]:
        named = key if isinstance(key, tuple) else (key,)
        events = [self._row_of(*row[:-1]) for row in match]
        return (*named, match[0][self._time], match[-1][self._time], events)
