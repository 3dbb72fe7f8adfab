"""When a query that failed is started again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

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

_FINAL_OF_SPARK: Final = ("AnalysisException", "[PYTHON_DATA_SOURCE_ERROR]", "UNSUPPORTED", "SCHEMA_MISMATCH")


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
    """Whether an error may be gone at the next attempt."""
    if isinstance(error, FINAL):
        return False
    text = f"{type(error).__name__} {error}"
    return not any(mark in text for mark in (*_FINAL_OF_SPARK, *(kind.__name__ for kind in FINAL)))
