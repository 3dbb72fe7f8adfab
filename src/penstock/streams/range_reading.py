"""Reading exactly a range of a partition through the client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.abc import TopicStream
from penstock.errors import BrokerUnavailableError
from penstock.model import Batch, Pointer

SILENCE_S: Final = 30.0
"""How long a stream that reported more records may return none."""
_WAIT_S: Final = 1.0


def batches_between(
    stream: TopicStream, partition: int, start: Pointer, end: Pointer, at_once: int, where: str
) -> Iterator[tuple[Batch, int]]:
    """Batches that are not empty, and how many of the records of each are before `end`.

    `where` is the stream's URL, for the error when it returns nothing.
    """
    at = start
    heard_s = time.monotonic()
    while at < end:
        batch = stream.read(partition, at, min(at_once, end - at), _WAIT_S)
        if batch:
            rows = _rows_before(batch.pointers(), end)
            if rows:
                yield batch, rows
        if batch.next > at:
            at, heard_s = batch.next, time.monotonic()
        elif time.monotonic() - heard_s > SILENCE_S:
            raise BrokerUnavailableError(
                f"topic {stream.topic!r}, partition {partition}: {where} has records from {at} to {end}, but returned "
                f"none for {SILENCE_S:g} s: check that it runs and can be reached"
            )


def _rows_before(pointers: Sequence[Pointer], end: Pointer) -> int:
    """The number of these ascending pointers that are before `end`."""
    if pointers[-1] < end:
        return len(pointers)
    return next(row for row, pointer in enumerate(pointers) if pointer >= end)
