"""Lookup without asking anybody: a stream joined to a table that follows a changelog topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.columns import ABOUT_A_RECORD

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
    """Every row of the stream, with what the table knows of its key.

    The table is what `Pipeline.table` gives: fresh in every batch, without a restart, and asked of no database. A row
    of the stream sees the table as it is when its batch is processed, not as it was when the event happened; a batch
    that is repeated may see more. "left" keeps rows that the table knows nothing of, with nulls; "inner" leaves them
    out.

    `on` names the columns that must be equal; a mapping if they are called otherwise in the table (stream: table).
    `columns` chooses those of the table to take along; by default all, but for what is known about its records.
    `prefix` goes in front of their names.
    """
    if how not in get_args(How):
        raise ConfigError(
            f"how={how!r} is not allowed: a stream can be enriched by a {' or '.join(get_args(How))} join"
        )
    if table.isStreaming:
        raise ConfigError("the table is a stream: give what Pipeline.table gives, or join streams with join_within")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in ([on] if isinstance(on, str) else on)}
    _require(stream, list(pairs), "stream")
    _require(table, [*pairs.values(), *(columns or ())], "table")
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


def _require(frame: DataFrame, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing or not names:
        raise SchemaMismatchError(
            f"the {what} has no column {', '.join(missing) or 'to join on'}: there are {', '.join(frame.columns)}"
        )
