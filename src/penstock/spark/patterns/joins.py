"""Joins of a stream: with a table that follows a changelog topic, and with another stream by key and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.late.watermarks import has_watermark
from penstock.spark.values.columns import ABOUT_A_RECORD, require_columns

How = Literal["left", "inner"]


def enrich(
    stream: DataFrame,
    table: DataFrame,
    on: str | Sequence[str] | Mapping[str, str],
    how: How = "left",
    *,
    columns: Sequence[str] | None = None,
    prefix: str = "",
) -> DataFrame:
    """Add the columns of the table row with the same key to every row of the stream.

    The table comes from `Pipeline.table`: it is current in every batch, without a restart or a database query. A row of
    the stream sees the table as of the processing of its batch, not as of the event; a repeated batch may see a newer
    table. "left" keeps rows without a match, with nulls; "inner" drops them.

    `on` names the columns that must be equal, or maps those of the stream to those of the table. `columns` selects
    columns of the table; the default is all but those about its records. `prefix` is put before their names.
    """
    if how not in get_args(How):
        raise ConfigError(
            f"how={how!r} is not allowed: a stream can be enriched by a {' or '.join(get_args(How))} join"
        )
    if table.isStreaming:
        raise ConfigError("the table is a stream: give what Pipeline.table gives, or join streams with join_within")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    require_columns(stream.columns, list(pairs), " to join on", what="the stream", at_least_one=True)
    require_columns(table.columns, [*pairs.values(), *(columns or ())], what="the table")
    about = {*ABOUT_A_RECORD, *(f"record_{name}" for name in ABOUT_A_RECORD)}
    chosen = [
        name
        for name in (table.columns if columns is None else columns)
        if name not in pairs.values() and (columns is not None or name not in about)
    ]
    taken = sorted(f"{prefix}{name}" for name in chosen if f"{prefix}{name}" in stream.columns)
    if taken:
        raise SchemaMismatchError(
            f"both stream and table have {', '.join(taken)}: choose others with columns=, or give a prefix="
        )
    keys = {theirs: f"_table_{number}" for number, theirs in enumerate(dict.fromkeys(pairs.values()))}
    right = table.select(
        *(F.col(f"`{theirs}`").alias(name) for theirs, name in keys.items()),
        *(F.col(f"`{name}`").alias(f"{prefix}{name}") for name in chosen),
    )
    equal = [stream[f"`{ours}`"] == right[keys[theirs]] for ours, theirs in pairs.items()]
    return stream.join(right, equal, how).drop(*keys.values())


Unmatched = Literal["none", "left", "right", "both"]

_JOINS: Final = {"none": "inner", "left": "leftOuter", "right": "rightOuter", "both": "fullOuter"}


def join_within(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    left_time: str,
    right_time: str,
    within: Duration,
    unmatched: Unmatched = "none",
    *,
    before: Duration = "0 seconds",
    right_prefix: str = "",
) -> DataFrame:
    """Join rows with equal `on` if the right one happened up to `within` after the left one, as clicks after searches.

    `before` also allows the right one to happen so much earlier. `unmatched` keeps rows without a match, with nulls:
    those of the left, the right, or both sides. They are emitted once both watermarks have passed the time in which a
    match could have happened. So both streams need a watermark on their time (`Pipeline.on_time` without a window),
    which also decides when state is dropped.

    The columns are those of `on`, then the left ones, then the right ones with `right_prefix`.
    """
    if unmatched not in _JOINS:
        raise ConfigError(f"unmatched={unmatched!r} is not allowed: use {', '.join(_JOINS)}")
    within_us, before_us = microseconds(within, "within", zero=True), microseconds(before, "before", zero=True)
    keys = [on] if isinstance(on, str) else list(on)
    _check(left, keys, left_time, "left")
    _check(right, keys, right_time, "right")
    ours = [name for name in left.columns if name not in keys]
    theirs = [name for name in right.columns if name not in keys]
    twice = sorted({*ours, *keys} & {f"{right_prefix}{name}" for name in theirs})
    if twice:
        raise SchemaMismatchError(f"both sides have {', '.join(twice)}: set right_prefix=, or drop columns")
    # Both sides get distinct names: a stream may be joined with itself.
    first = left.select(*(F.col(f"`{name}`").alias(f"left_{name}") for name in left.columns))
    second = right.select(*(F.col(f"`{name}`").alias(f"right_{name}") for name in right.columns))
    happened, followed = F.col(f"left_{left_time}"), F.col(f"right_{right_time}")
    conditions = [F.col(f"left_{key}") == F.col(f"right_{key}") for key in keys]
    conditions += [
        followed >= happened - F.expr(f"interval {interval(before_us)}"),
        followed <= happened + F.expr(f"interval {interval(within_us)}"),
    ]
    joined = first.join(second, conditions, _JOINS[unmatched])
    return joined.select(
        *(F.coalesce(f"left_{key}", f"right_{key}").alias(key) for key in keys),
        *(F.col(f"left_{name}").alias(name) for name in ours),
        *(F.col(f"right_{name}").alias(f"{right_prefix}{name}") for name in theirs),
    )


def _check(frame: DataFrame, keys: Sequence[str], time: str, side: str) -> None:
    require_columns(frame.columns, keys, " to join on", what=f"the {side} side", at_least_one=True)
    require_columns(frame.columns, [time], what=f"the {side} side")
    if frame.isStreaming and not has_watermark(frame, time):
        raise ConfigError(
            f"the {side} stream has no watermark on {time!r}, so its rows would be kept forever: use"
            f" pipe.on_time(frame, {time!r}, grace=...), or withWatermark"
        )
