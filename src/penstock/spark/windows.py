"""Time windows and kinds of time: thin wrappers over Spark's functions that check durations at once.

    spend = orders.groupBy(tumbling("at", "10 seconds"), "customer").sum("amount")

Windows are aligned to the start of 1970, UTC, unless `offset` shifts them. A window includes its start and excludes its
end. In Spark it is a column named `window` (for sessions, `session_window`), a struct of `start` and `end`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, TimestampNTZType, TimestampType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.values.columns import record_column, require_columns

MOST_WINDOWS: Final = 1_000
"""The maximum number of windows per event: each of them becomes a row."""

_UNITS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def tumbling(column: Column | str, size: Duration, *, offset: Duration | None = None) -> Column:
    """Adjacent windows: each event is in exactly one. `offset` shifts them, as for days that begin at 6:00."""
    return _window(column, microseconds(size, "size"), None, offset)


def hopping(column: Column | str, size: Duration, every: Duration, *, offset: Duration | None = None) -> Column:
    """Overlapping windows that begin `every` so often: each event is in `size / every` of them."""
    size_us, every_us = microseconds(size, "size"), microseconds(every, "every")
    if every_us > size_us:
        raise ConfigError(f"every={every!r} is longer than size={size!r}: events in between belong to no window")
    if size_us / every_us > MOST_WINDOWS:
        raise ConfigError(
            f"every event would be in {size_us // every_us} windows, and become as many rows (at most {MOST_WINDOWS}):"
            " raise `every`"
        )
    return _window(column, size_us, every_us, offset)


def sliding(column: Column | str, size: Duration, step: Duration) -> Column:
    """An approximation of a window that moves with the events, in steps of `step`.

    Spark has no such window: this is a hopping window with a short step. Every event becomes `size / step` rows, and
    results are exact to within one step. For the exact window before each event, keep the events in a list of
    `stateful`: see docs/spark/state.md.
    """
    return hopping(column, size, step)


def session(column: Column | str, gap: Duration) -> Column:
    """Session windows: events of a key that follow each other within `gap`.

    In a stream, Spark requires another grouping key, and append or complete mode.
    """
    return F.session_window(column, interval(microseconds(gap, "gap")))


def event_time(frame: DataFrame, column: str, unit: str | None = None) -> Column:
    """The event time in a column: a timestamp, or an integer with the `unit` s, ms or us."""
    kind = _type_of(frame, column)
    if isinstance(kind, TimestampType | TimestampNTZType) and unit is None:
        return F.col(column)
    if isinstance(kind, IntegralType) and unit in _UNITS:
        return F.timestamp_micros(F.col(column).cast("long") * _UNITS[unit])
    raise SchemaMismatchError(
        f"column {column!r} is {kind.simpleString()}{'' if unit is None else f' in {unit!r}'}, but an event time must"
        " be a timestamp, or an integer with unit='s', 'ms' or 'us'; convert other types with to_timestamp"
    )


def append_time(frame: DataFrame) -> Column:
    """The time at which the record was appended to the log, by the broker's clock.

    The topic must have message.timestamp.type=LogAppendTime. A record with the producer's timestamp fails the query, so
    that the two are never confused.
    """
    time, whose, topic = (
        F.col(record_column(frame.columns, name)) for name in ("timestamp", "timestamp_type", "topic")
    )
    refused = F.raise_error(
        F.concat(
            F.lit("the timestamp of a record of topic "),
            F.coalesce(topic, F.lit("?")),
            F.lit(" is its producer's, not the log's: set message.timestamp.type=LogAppendTime on the topic"),
            F.lit(" (earlier records keep their timestamps), or use the event time"),
        )
    )
    return F.when(whose == "append", time).otherwise(refused.cast("timestamp"))


def processing_time() -> Column:
    """The processing time: the start of the batch, the same for all its rows, and for a repeated batch."""
    return F.current_timestamp()


def _window(column: Column | str, size_us: int, every_us: int | None, offset: Duration | None) -> Column:
    shift = None if offset is None else interval(microseconds(offset, "offset", zero=True))
    return F.window(column, interval(size_us), None if every_us is None else interval(every_us), shift)


def _type_of(frame: DataFrame, column: str) -> DataType:
    require_columns(frame.columns, [column])
    return frame.schema[column].dataType
