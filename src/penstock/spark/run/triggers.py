"""Triggers: when a query starts its next batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RealTime:
    """Real-time mode: records pass the query one by one, in milliseconds; each `batch` ends with a checkpoint."""

    batch: str = "5 minutes"


Trigger = str | RealTime | None
"""A duration such as "10 seconds": one batch per interval. None: the next batch as soon as there is input."""


def apply(writer: DataStreamWriter, trigger: Trigger, once: bool) -> DataStreamWriter:
    """Set the trigger of a micro-batch query."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger if isinstance(trigger, str) else "0 seconds")


def check(trigger: Any, what: str) -> None:
    if trigger is None or isinstance(trigger, RealTime):
        return
    if not isinstance(trigger, str) or not trigger.strip():
        raise ConfigError(
            f'{what}: trigger={trigger!r} is not allowed: use a duration such as "10 seconds", or RealTime()'
        )
