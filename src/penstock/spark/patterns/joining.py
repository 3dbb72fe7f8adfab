"""Two streams: what belongs together because it has one key and happened soon after one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import Duration, interval, microseconds
from penstock.spark.watermarks import has_watermark

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
    """Pairs of rows with equal `on`, of which the right one happened up to `within` after the left one: searches, and
    the clicks that followed. `before` lets it come first, by so much.

    `unmatched` keeps rows that found no partner, with nulls for it: those of the left, of the right, or both. They come
    when it is certain, that is, when both watermarks have passed the time in which a partner could have happened. So
    both streams need a watermark on their time (`Pipeline.on_time` without a window); it also says when rows are
    forgotten.

    The columns are those of `on`, the left ones, then the right ones with `right_prefix` in front.
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
        raise SchemaMismatchError(
            f"both sides have {', '.join(twice)}: give a right_prefix=, or drop what is not needed"
        )
    # Both sides get names of their own: a stream may be joined to itself.
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
    missing = [name for name in (*keys, time) if name not in frame.columns]
    if missing or not keys:
        raise SchemaMismatchError(
            f"the {side} side has no column {', '.join(missing) or 'to join on'}: there are {', '.join(frame.columns)}"
        )
    if frame.isStreaming and not has_watermark(frame, time):
        raise ConfigError(
            f"the {side} stream has no watermark on {time!r}, so its rows would have to be kept for ever: use"
            f" pipe.on_time(frame, {time!r}, grace=...), or withWatermark"
        )
