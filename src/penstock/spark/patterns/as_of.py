"""A join of a stream with a table as of the time of each event: the table is known by its changes."""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.model.times import EPOCH
from penstock.spark.durations import Duration
from penstock.spark.late.watermarks import without_watermarks
from penstock.spark.patterns.changelogs import (
    PLACE,
    ROW,
    changed_rows,
    key_names,
    key_types,
    nullable,
    pairs_of,
    require_changes,
    require_distinct,
    row_columns,
    row_type,
)
from penstock.spark.patterns.joins import How
from penstock.spark.patterns.ordering import WAITING, InOrder, pointer_of, with_watermark
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful

_TIME: Final = "_time"
"""The event time of a row of the stream. It is null for changes: Spark would drop changes before the watermark."""
_EVENT: Final = "_event"
_CHANGED: Final = "_changed"
VERSIONS: Final = "versions"


def enrich_as_of(
    stream: DataFrame,
    changelog: DataFrame,
    on: str | Sequence[str] | Mapping[str, str],
    stream_time: str,
    table_time: str,
    how: How = "left",
    *,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    grace: Duration | None = None,
) -> DataFrame:
    """Add the columns of the table row that was current at the time of each row of the stream.

    `changelog` is the stream of changes: `Pipeline.read` of a topic with the key `on`, or `debezium` of one. A change
    applies from its `table_time` on, but never before the change to the same key that precedes it in its topic. One
    without a time applies together with that one, or from the beginning. A deletion, `deleted` or a record without a
    value, means that there is no row from then on. Changes need their `pointer`: it orders those of one batch.

    A row of the stream waits until the watermark reaches its `stream_time`, so it sees all changes that had arrived by
    then, in whatever order. `grace` sets the watermark unless the stream has one, as after `Pipeline.on_time` (without
    a window). A later change counts for the rows that still wait. The changelog needs no watermark; with one, rows wait
    until both have been reached, which a table without changes delays for ever.

    "left" keeps rows without a match, with nulls; "inner" drops them. Rows without a time match nothing, and are
    emitted at once. The other options are those of `enrich`. State has the rows that wait, for each key the version
    that the watermark has reached last, and all later ones.
    """
    if how not in get_args(How):
        raise ConfigError(
            f"how={how!r} is not allowed: a stream can be enriched by a {' or '.join(get_args(How))} join"
        )
    if not stream.isStreaming:
        raise ConfigError("the rows to enrich are no stream: in a batch, join with plain Spark")
    require_changes(changelog, "the changelog")
    pairs = pairs_of(on)
    keys = key_types(stream, changelog, pairs, ("the stream", "the changelog"))
    chosen = row_columns(changelog, list(pairs.values()), columns, "the changelog")
    if table_time not in changelog.columns or not isinstance(changelog.schema[table_time].dataType, TimestampType):
        raise SchemaMismatchError(
            f"the changelog has no column {table_time!r} of type timestamp for the times of changes; it has "
            f"{', '.join(changelog.columns)}"
        )
    require_distinct(stream.columns, [f"{prefix}{name}" for name in chosen])
    timely = with_watermark(stream, stream_time, grace)
    ours, theirs = without_watermarks(timely.schema), row_type(changelog, chosen)
    changes = changed_rows(
        changelog,
        {theirs: keys[ours] for ours, theirs in pairs.items()},
        chosen,
        F.col(f"`{table_time}`").alias(_CHANGED, metadata={}),
    )
    names = key_names(len(keys))
    events = timely.select(
        *(F.col(f"`{name}`").cast(kind).alias(alias) for (name, kind), alias in zip(keys.items(), names, strict=True)),
        F.col(f"`{stream_time}`").alias(_TIME),
        F.struct(*(F.col(f"`{name}`") for name in timely.columns)).alias(_EVENT),
        F.lit(None).cast(changes.schema[PLACE].dataType).alias(PLACE),
        F.lit(None).cast("timestamp").alias(_CHANGED),
        F.lit(None).cast(theirs).alias(ROW),
    )
    versions = changes.select(
        *names,
        F.lit(None).cast("timestamp").alias(_TIME),
        F.lit(None).cast(ours).alias(_EVENT),
        PLACE,
        _CHANGED,
        ROW,
    )
    output = StructType([*ours.fields, *(StructField(f"{prefix}{it.name}", it.dataType) for it in nullable(theirs))])
    joining = AsOf(stream_time, pointer_of(timely), output.names, keeps_unmatched=how == "left")
    return stateful(
        events.union(versions),
        names,
        joining.arrived,
        output,
        lists={WAITING: ours, VERSIONS: version_type(theirs)},
        timers="event",
        on_timer=joining.due,
    )


def version_type(row: StructType) -> StructType:
    return StructType([StructField("since", TimestampType()), StructField(ROW, row)])


class AsOf:
    """The stateful functions of one key. The list of versions is in the order of their times."""

    def __init__(self, time: str, pointer: str | None, output: Sequence[str], *, keeps_unmatched: bool) -> None:
        self._order = InOrder(time, pointer)
        self._time = time
        self._row_of = Row(*output)
        self._width = len(output)
        self._keeps_unmatched = keeps_unmatched

    def arrived(self, key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[Row]:
        events, changes = [], []
        for row in rows:
            if row[_EVENT] is None:
                changes.append(row)
            else:
                events.append(row[_EVENT])
        for event in self._order.arrived(key, iter(events), ctx):
            yield from self._joined(event, None)
        if changes:
            known = list(ctx.list(VERSIONS))
            changes.sort(key=lambda row: (row[PLACE] is not None, row[PLACE] or 0))
            self._keep(known, [*known, *_versions_after(known, changes)], ctx)

    def due(self, key: Any, at: datetime.datetime, ctx: KeyContext) -> Iterator[Row]:
        versions = list(ctx.list(VERSIONS))
        since = [version.since for version in versions]
        for event in self._order.due(key, at, ctx):
            place = bisect.bisect_right(since, event[self._time])
            yield from self._joined(event, versions[place - 1][ROW] if place else None)
        self._keep(versions, versions, ctx)

    def _keep(self, before: list[Row], versions: list[Row], ctx: KeyContext) -> None:
        """Store the versions that rows may still need: those that wait, and those after the watermark."""
        needed_from = min([ctx.watermark, *(row[self._time] for row in self._order.waiting(ctx))])
        first = max(0, bisect.bisect_right([version.since for version in versions], needed_from) - 1)
        if versions and versions[first][ROW] is None and versions[first].since <= needed_from:
            first += 1  # no row is what an unknown key has, too
        kept = versions[first:]
        if kept != before:
            ctx.list(VERSIONS).replace(kept)

    def _joined(self, event: Row, found: Row | None) -> Iterator[Row]:
        if found is not None:
            yield self._row_of(*event, *found)
        elif self._keeps_unmatched:
            yield self._row_of(*event, *[None] * (self._width - len(event)))


def _versions_after(known: Sequence[Row], changes: Sequence[Row]) -> Iterator[Row]:
    """The versions that changes make, in the order of their topic."""
    last = known[-1] if known else None
    for change in changes:
        since = change[_CHANGED] or EPOCH
        last = Row(since=since if last is None else max(since, last.since), **{ROW: change[ROW]})
        yield last
