"""`Restart`: when a failed query is started again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException, PySparkException

from penstock import errors
from penstock.errors import (
    ConfigError,
    FencedError,
    OffsetOutOfRangeError,
    PenstockError,
    PipelineError,
    SerdeError,
    UnknownTopicError,
)
from penstock.model.retry import Retry
from penstock.spark.values.jvm_encoding import is_refused_row

FINAL: Final[tuple[type[PenstockError], ...]] = (
    ConfigError,
    FencedError,
    OffsetOutOfRangeError,
    PipelineError,
    SerdeError,
    UnknownTopicError,
)
"""Errors that a restart does not cure: a person must act."""

_WRONG_VALUE: Final = "22"
"""The class of SQLSTATE of errors of ANSI mode: a value that cannot be cast, a division by zero, an overflow."""
_OF_QUERY: Final = "XXKST"
"""The SQLSTATE of every error that ends a query outside of foreachBatch."""
_SQL_STATE: Final = re.compile(r"SQLSTATE: (\w{5})")
_PENSTOCK_ERROR: Final = re.compile(r"penstock\.errors\.(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start a failed query again from its checkpoint, after growing waits. A delivered batch resets the count."""

    attempts: int = 5
    """The number of restarts in a row; 0 means none."""
    first_delay_s: float = 1.0
    """The delay before the first restart; each further one is twice as long."""
    max_delay_s: float = 60.0
    """The longest delay."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 0:
            raise ConfigError(f"restart attempts={self.attempts!r} is not allowed: it must be an integer >= 0")
        self.delays_s()

    def delays_s(self) -> Iterator[float]:
        """The delay before the first restart, the second, and so on without end."""
        return Retry(None, first_delay_s=self.first_delay_s, max_delay_s=self.max_delay_s).delays_s()


def is_transient(error: BaseException) -> bool:
    """Whether an error may not occur again at the next attempt.

    An error that was raised in a Python worker arrives as text inside an error of Spark: the last class named there
    counts.
    """
    if isinstance(error, AnalysisException) or is_of_a_row(error):
        return False
    named = _PENSTOCK_ERROR.findall(str(error))
    kind = getattr(errors, named[-1], type(error)) if named else type(error)
    return not issubclass(kind, FINAL)


def is_of_a_row(error: BaseException) -> bool:
    """Whether one of Spark's own expressions failed for the values of a row: it fails again at the next attempt."""
    if not isinstance(error, PySparkException):
        return False
    state = error.getSqlState()
    states = [state] if state not in (None, _OF_QUERY) else _SQL_STATE.findall(str(error))
    return any(each.startswith(_WRONG_VALUE) for each in states) or is_refused_row(error)
