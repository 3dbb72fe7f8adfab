"""Expectations: a condition that each row of a frame must meet, and what happens to the rows that do not.

Spark evaluates the condition. Only its outcome goes to Python, and the row as JSON where it is not met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BooleanType

from penstock.errors import BadRowsError, ConfigError
from penstock.spark.errors import reports
from penstock.spark.errors.batch_rows import place_of
from penstock.spark.errors.origins import origin_column
from penstock.spark.errors.reports import Reporter
from penstock.spark.values.json_text import json_object

Otherwise = Literal["drop", "dead_letter", "fail"]
NOT_MET: Final = "ExpectationNotMet"
"""The kind of error in the letters, to filter by."""
_arrow_udf: Final[Any] = arrow_udf
"""Without its types, which require the kind of function that it finds out from the annotations."""
CHECK: Final = "penstock_expectation"
"""The name of the function in plans."""
_OK: Final = "penstock_expectation_is_met"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition for rows. Calling it applies it to a frame: `frame.transform(expectation)`."""

    name: str
    condition: str | Column
    otherwise: Otherwise

    @property
    def rule(self) -> str:
        """How reports and letters call it."""
        return f"expectation {self.name}"

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frame without the rows that do not meet the condition. Null counts as not met."""
        condition = F.expr(self.condition) if isinstance(self.condition, str) else self.condition
        try:
            kind = frame.select(condition).schema.fields[0].dataType
        except PySparkException as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{self.rule}: {self.text!r} cannot be evaluated on the frame: {reason}") from error
        if not isinstance(kind, BooleanType):
            raise ConfigError(f"{self.rule}: {self.text!r} is {kind.simpleString()}, not a condition")
        known = frame.withColumn(_OK, F.coalesce(condition, F.lit(False)))
        is_met = F.col(_OK)
        nothing = F.lit(None).cast("string")
        describes = self.otherwise != "drop"
        origin = F.when(~is_met, origin_column(frame)) if describes else nothing
        row = F.when(~is_met, json_object([frame[f"`{name}`"] for name in frame.columns])) if describes else nothing
        check = _check(self.rule, self.text, self.otherwise, reports.accumulator(frame.sparkSession.sparkContext))
        # Not deterministic: otherwise Spark may evaluate it twice, and every row would count twice.
        made: Any = _arrow_udf(check, BooleanType())
        return known.where(made.asNondeterministic()(is_met, origin, row)).drop(_OK)

    @property
    def text(self) -> str:
        """The condition in SQL, as far as it is known."""
        return str(self.condition).removeprefix("Column<'").removesuffix("'>")


def expectation(name: str, condition: str | Column, otherwise: str, what: str) -> Expectation:
    """A checked expectation. Raises ConfigError."""
    if not name or not isinstance(name, str):
        raise ConfigError(f"{what}: an expectation needs a name, not {name!r}")
    if otherwise not in get_args(Otherwise):
        raise ConfigError(
            f"{what}: otherwise={otherwise!r} is not allowed for expectation {name!r}: use "
            f"{', '.join(get_args(Otherwise))}"
        )
    if not isinstance(condition, str | Column) or condition == "":
        raise ConfigError(f"{what}: expectation {name!r} needs a condition in SQL or a Column, not {condition!r}")
    return Expectation(name, condition, otherwise)  # type: ignore[arg-type]  # checked above


def _check(
    rule: str, text: str, otherwise: Otherwise, channel: Accumulator[Any]
) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """The function that tasks call with whether rows meet a condition. It answers which of them stay."""
    reporters: list[Reporter] = []

    def check(is_met: pa.Array, origins: pa.Array, rows: pa.Array) -> pa.Array:
        if not reporters:
            reporters.append(Reporter.of_task(rule, channel))
        reporter = reporters[0]
        reporter.count.seen += len(is_met)
        failed = len(is_met) - is_met.true_count
        if not failed:
            return is_met
        if otherwise == "drop":
            reporter.count.dropped += failed
            return is_met
        of_failed = pc.invert(is_met)
        for origin, row in zip(origins.filter(of_failed).to_pylist(), rows.filter(of_failed).to_pylist(), strict=True):
            error = f"{NOT_MET}: {rule}: {text} is not true"
            if otherwise == "fail":
                where = "a row" if origin is None else place_of(origin)
                raise BadRowsError(f"{rule}: {text} is not true for {where}: {row}")
            reporter.not_met(error, NOT_MET, origin, row)
        return is_met

    check.__name__ = check.__qualname__ = CHECK
    return check
