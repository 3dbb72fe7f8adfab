"""When a query that failed is started again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import AnalysisException

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
from penstock.producing.backoff import Backoff

FINAL: Final[tuple[type[PenstockError], ...]] = (
    ConfigError,
    FencedError,
    OffsetOutOfRangeError,
    PipelineError,
    SerdeError,
    UnknownTopicError,
)
"""Errors that come back however often one tries: somebody has to do something."""

_OURS: Final = re.compile(r"penstock\.errors\.(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A query that failed is started again from its checkpoint, later each time; a batch that succeeds starts the
    count anew."""

    attempts: int = 5
    """How often in a row; 0 is never."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=1.0, longest_s=60.0))

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 0:
            raise ConfigError(f"restart attempts={self.attempts!r} is not allowed: use 0 or more")


def may_pass(error: BaseException) -> bool:
    """Whether an error may be gone at the next attempt.

    What was raised in a Python process of Spark arrives as text inside an error of Spark's; the last one that is named
    there is what it was about.
    """
    if isinstance(error, AnalysisException):
        return False
    named = _OURS.findall(str(error))
    kind = getattr(errors, named[-1], type(error)) if named else type(error)
    return not issubclass(kind, FINAL)
