"""Windows of time, and which time: thin names over what Spark has, with durations that are checked at once.

    spend = orders.groupBy(tumbling("at", "10 seconds"), "customer").sum("amount")

Windows are laid out from the beginning of 1970, UTC, unless `offset` shifts them; each contains its start and not its
end. In Spark a window is a column, a struct of `start` and `end`, called `window` (a session's `session_window`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, TimestampNTZType, TimestampType

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds

MOST_WINDOWS: Final = 1_000
"""An event in more windows at once than this would become as many rows: a mistake, or too much."""

_UNITS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def tumbling(column: Column | str, size: Duration, *, offset: Duration | None = None) -> Column:
    """One window after the other: each event is in exactly one. `offset` shifts them: days that begin at 6:00."""
    return _window(column, microseconds(size, "size"), None, offset)


def hopping(column: Column | str, size: Duration, every: Duration, *, offset: Duration | None = None) -> Column:
    """Windows of one size that begin `every` so often and overlap: each event is in `size / every` of them."""
    size_us, every_us = microseconds(size, "size"), microseconds(every, "every")
    if every_us > size_us:
        raise ConfigError(f"every={every!r} is longer than size={size!r}: events in between belong to no window")
    if size_us / every_us > MOST_WINDOWS:
        raise ConfigError(
            f"every event would be in {size_us // every_us} windows, and become as many rows (at most {MOST_WINDOWS}):"
            " let them begin less often"
        )
    return _window(column, size_us, every_us, offset)


def sliding(column: Column | str, size: Duration, step: Duration) -> Column:
    """A window that moves along with the events, as closely as `step` says.

    Spark has no window that moves with each event: this is a hopping one with a short step, so that every event becomes
    `size / step` rows, and what happened in any `size` before a moment is known to within one step. For the exact
    window before each event, keep the events in a list of `state.stateful`: see docs/spark/state.md.
    """
    return hopping(column, size, step)


def session(column: Column | str, gap: Duration) -> Column:
    """Events that follow each other in less than `gap`, by key: a session ends when nothing has come for so long.

    In a stream Spark wants a key to group by beside it, and append or complete mode.
    """
    return F.session_window(column, interval(microseconds(gap, "gap")))


def event_time(frame: DataFrame, column: str, unit: str | None = None) -> Column:
    """When the event happened, by the event itself: a field that is a time, or a number in a `unit` of s, ms or us."""
    kind = _type_of(frame, column)
    if isinstance(kind, TimestampType | TimestampNTZType) and unit is None:
        return F.col(column)
    if isinstance(kind, IntegralType) and unit in _UNITS:
        return F.timestamp_micros(F.col(column).cast("long") * _UNITS[unit])
    raise SchemaMismatchError(
        f"column {column!r} is {kind.simpleString()}{'' if unit is None else f' in {unit!r}'}, and no event time: that"
        " is a timestamp, or a whole number with unit='s', 'ms' or 'us'; cast anything else with to_timestamp"
    )


def append_time(frame: DataFrame) -> Column:
    """When the record was appended to the log, by the clock of the log.

    The topic must say so itself: message.timestamp.type=LogAppendTime. A record whose timestamp is its producer's fails
    the query, with a message that says this, as otherwise one time would silently be taken for the other.
    """
    prefix = "record_" if "record_timestamp" in frame.columns else ""
    time, whose = (F.col(_present(frame, prefix, name)) for name in ("timestamp", "timestamp_type"))
    topic = F.col(_present(frame, "record_" if "record_topic" in frame.columns else "", "topic"))
    refused = F.raise_error(
        F.concat(
            F.lit("the time of a record of topic "),
            F.coalesce(topic, F.lit("?")),
            F.lit(" is its producer's, not the log's: set message.timestamp.type=LogAppendTime on the topic"),
            F.lit(" (records from before keep the time they had), or use the event time"),
        )
    )
    return F.when(whose == "append", time).otherwise(refused.cast("timestamp"))


def processing_time() -> Column:
    """When the row is processed: the start of its batch, the same for all its rows, and the same if it is repeated."""
    return F.current_timestamp()


def _window(column: Column | str, size_us: int, every_us: int | None, offset: Duration | None) -> Column:
    shift = None if offset is None else interval(microseconds(offset, "offset", zero=True))
    return F.window(column, interval(size_us), None if every_us is None else interval(every_us), shift)


def _type_of(frame: DataFrame, column: str) -> DataType:
    if column not in frame.columns:
        raise SchemaMismatchError(f"there is no column {column!r}: the frame has {', '.join(frame.columns)}")
    return frame.schema[column].dataType


def _present(frame: DataFrame, prefix: str, name: str) -> str:
    for column in (f"{prefix}{name}", name):
        if column in frame.columns:
            return column
    raise SchemaMismatchError(
        f"there is no column {name!r}, which tells the time of a record: take it along when you select others"
    )
