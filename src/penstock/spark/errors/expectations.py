"""Expectations: a condition that each row of a frame must meet, and what happens to the rows that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from penstock.errors import ConfigError
from penstock.spark.errors.row_checks import Otherwise, RowRule, checked

NOT_MET: Final = "ExpectationNotMet"
"""The kind of error in the letters, to filter by."""


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
        made = RowRule(self.rule, f"{self.rule}: {self.text} is not true", NOT_MET, self.otherwise)
        return checked(frame, [made], [F.coalesce(condition, F.lit(False))])

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
