"""Letters for tests, made from the records that they are about."""

from __future__ import annotations

from penstock.model import DeadLetter, Record
from penstock.model.letter import letter_id


def given_up(record: Record, group: str = "billing", error: str = "ValueError: no") -> DeadLetter:
    """The letter that a group puts when it gives this record up."""
    return DeadLetter(
        id=letter_id(group, record.topic, record.partition, record.offset),
        group=group,
        record=record,
        error=error,
        error_kind=error.partition(":")[0],
        traceback=f"Traceback (most recent call last):\n{error}\n",
        attempts=3,
        first_ms=1_700_000_000_000,
        last_ms=1_700_000_001_000 + record.offset % 1000,
        handler="bill",
        handler_version="1.2.0",
    )
