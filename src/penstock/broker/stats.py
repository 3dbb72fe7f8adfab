"""What the broker counts as it works: plain numbers, read when somebody asks for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    requests: Counter[int] = field(default_factory=Counter)
    """By API key."""
    produced_bytes: int = 0
    fetched_bytes: int = 0
    refused_connections: int = 0
    connections: int = 0
    """Ever accepted."""
    compactions: int = 0
    segments_deleted: int = 0
