"""The counters of a producer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Live counters. Each number is written by one thread at a time."""

    delivered: int = 0
    refused: int = 0
    dropped: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A snapshot of a producer's counters."""

    sent: int
    """Records that `send` accepted."""
    delivered: int
    """Records that the stream acknowledged, including those of an earlier process in the spool."""
    refused: int
    """Records that the stream rejected for good. Those of a spool are in its `refused.jsonl`."""
    dropped: int
    """Records dropped because the buffer was full."""
    failed: int
    """Records that were not acknowledged before their timeout, or before the producer was closed."""
    retried: int
    """Retries by this producer; those inside librdkafka are not counted."""
    buffered: int
    """Records that are neither acknowledged nor failed."""
    buffered_bytes: int
    oldest_age_s: float
    """The age of the oldest buffered record."""
