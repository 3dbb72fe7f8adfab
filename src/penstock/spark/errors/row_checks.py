"""Filters that leave rows out of a frame and report them.

Spark evaluates what a row must meet. Only its outcome goes to Python, and the row as JSON where it is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BooleanType

from penstock.errors import BadRowsError
from penstock.spark.errors import reports
from penstock.spark.errors.origins import CARRIED, HIDDEN, origin_column, place_of
from penstock.spark.errors.reports import Reporter
from penstock.spark.values.json_text import json_object

Otherwise = Literal["drop", "dead_letter", "fail"]
_arrow_udf: Final[Any] = arrow_udf
"""Without its types, which require the kind of function that it finds out from the annotations."""
CHECK: Final = "penstock_check"
"""The name of the function in plans."""
_FAILED: Final = "penstock_failed"


@dataclass(frozen=True, slots=True)
class RowRule:
    """Something that each row must meet."""

    name: str
    """How reports and letters call it."""
    error: str
    """What the letters say, without the kind."""
    kind: str
    otherwise: Otherwise = "dead_letter"
    is_listed: bool = True
    """Whether it is counted even if all rows meet it."""


def checked(
    frame: DataFrame,
    rules: Sequence[RowRule],
    is_met: Sequence[Column],
    *,
    origin: Column | None = None,
    row: Column | None = None,
) -> DataFrame:
    """The frame without the rows for which one of the conditions does not hold. The conditions are never null.

    The first rule that a row does not meet is reported. `origin` and `row`, as JSON, are made of the columns of the
    frame by default.
    """
    failed = F.coalesce(*(F.when(~each, number) for number, each in enumerate(is_met)))
    known = frame.withColumn(_FAILED, failed)
    is_failed = F.col(_FAILED).isNotNull()
    origins = rows = F.lit(None).cast("string")
    if any(rule.otherwise != "drop" for rule in rules):
        names = [name for name in frame.columns if name != CARRIED and not name.startswith(HIDDEN)]
        columns = [frame[f"`{name}`"] for name in names if names.count(name) == 1]
        origins = F.when(is_failed, origin_column(frame) if origin is None else origin)
        rows = F.when(is_failed, json_object(columns) if row is None else row)
    check = _check(tuple(rules), reports.accumulator(frame.sparkSession.sparkContext))
    # Not deterministic: otherwise Spark may evaluate it twice, and every row would count twice.
    made: Any = _arrow_udf(check, BooleanType())
    return known.where(made.asNondeterministic()(F.col(_FAILED), origins, rows)).drop(_FAILED)


def _check(rules: Sequence[RowRule], channel: Accumulator[Any]) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """The function that tasks call with the number of the rule that rows do not meet, null for those that stay."""
    reporters: dict[int, Reporter] = {}

    def reporter_of(number: int) -> Reporter:
        if number not in reporters:
            reporters[number] = Reporter.of_task(rules[number].name, channel)
        return reporters[number]

    def check(failed: pa.Array, origins: pa.Array, rows: pa.Array) -> pa.Array:
        for number, rule in enumerate(rules):
            if rule.is_listed:
                reporter_of(number).count.seen += len(failed)
        stays = pc.is_null(failed)
        if failed.null_count == len(failed):
            return stays
        leaves = pc.invert(stays)
        for number, origin, row in zip(
            *(each.filter(leaves).to_pylist() for each in (failed, origins, rows)), strict=True
        ):
            rule, reporter = rules[number], reporter_of(number)
            if rule.otherwise == "drop":
                reporter.count.dropped += 1
            elif rule.otherwise == "fail":
                where = "a row" if origin is None else place_of(origin)
                raise BadRowsError(f"{rule.error} for {where}: {row}")
            else:
                reporter.not_met(f"{rule.kind}: {rule.error}", rule.kind, origin, row)
        return stays

    check.__name__ = check.__qualname__ = CHECK
    return check
