"""What a producer has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counted as it happens. Each number is written by one thread at a time."""

    delivered: int = 0
    refused: int = 0
    dropped: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A look at a producer."""

    sent: int
    """Records that `send` has taken."""
    delivered: int
    """Records that the stream has acknowledged, those of an earlier process in the spool among them."""
    refused: int
    """Records that the stream will never take. Those of a spool are in its file of refused records."""
    dropped: int
    """Records that were dropped because the buffer was full."""
    failed: int
    """Records whose time was over, or whose producer was closed, before they were acknowledged."""
    retried: int
    """Attempts beyond the first, as far as this producer makes them itself and not the stream."""
    buffered: int
    """Records that are neither acknowledged nor given up."""
    buffered_bytes: int
    oldest_age_s: float
    """How long the oldest of them has waited."""
