"""Delivering what handlers give: to whatever topics, and until all of it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.abc import Streams
from penstock.model import NewRecord

_TIMEOUT_S: Final = 120.0


def deliver(streams: Streams, records: Sequence[NewRecord]) -> None:
    """Send records, and return when all are stored. Raises what keeps one of them from being so."""
    by_topic: dict[str, list[NewRecord]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    receipts = [receipt for topic, each in by_topic.items() for receipt in streams.stream(topic).append(each)]
    for receipt in receipts:
        receipt.result(_TIMEOUT_S)
