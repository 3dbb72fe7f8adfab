"""Sequences of events of one key, such as three declines, then an approval."""

from __future__ import annotations

import datetime
from collections import deque
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
_LEAST: Final = datetime.timedelta(microseconds=1)
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
        begun: list[deque[list[int]]] = [deque() for _ in range(self._steps)]
        for number in range(len(rows)):
            complete = self._advance(begun, rows, number)
            if number >= len(recent):
                for match in complete:
                    yield self._output(key, [rows[each] for each in match])
        self._drop_ended(begun, rows, ctx.watermark)  # rows to come are after the watermark
        first = min((matches[0][0] for matches in begun if matches), default=len(rows))
        kept = rows[first:]
        if kept != recent:
            ctx.list(RECENT).replace(kept)
        if kept:
            self._order.wake(self._ends(kept[0]), ctx)

    def _advance(self, begun: list[deque[list[int]]], rows: Sequence[Row], number: int) -> Sequence[list[int]]:
        """Take a row into the matches that have begun, and return those that it completes.

        `begun` has, for each number of steps, the matches with as many rows, in the order of their beginnings. One that
        began earlier is at least as far as a later one, so those that advance together stay in that order.
        """
        row = rows[number]
        steps = row[STEPS]
        self._drop_ended(begun, rows, row[self._time] - _LEAST)
        complete: deque[list[int]] = deque()
        for step in range(self._steps - 1, 0, -1):
            matches = begun[step]
            if not matches:
                continue
            if steps >> step & 1:
                for match in matches:
                    match.append(number)
                if step == self._steps - 1:
                    complete = matches
                else:
                    begun[step + 1].extend(matches)
                begun[step] = deque()
            elif self._adjacent:
                begun[step] = deque()
        if complete and not self._overlapping:
            begun[:] = [deque() for _ in begun]
            return [complete[0]]
        if steps & 1:
            begun[1].append([number])
        return complete

    def _drop_ended(self, begun: list[deque[list[int]]], rows: Sequence[Row], reached: datetime.datetime) -> None:
        """Drop the matches that no row after this time can complete."""
        for matches in begun:
            while matches and self._ends(rows[matches[0][0]]) <= reached:
                matches.popleft()

    def _ends(self, first: Row) -> datetime.datetime:
        """Until when a match that begins with this row can be completed."""
        ends: datetime.datetime = first[self._time] + self._within
        return ends

    def _output(self, key: Any, match: Sequence[Row]) -> tuple[Any, ...]:
        named = key if isinstance(key, tuple) else (key,)
        events = [self._row_of(*row[:-1]) for row in match]
        return (*named, match[0][self._time], match[-1][self._time], events)
