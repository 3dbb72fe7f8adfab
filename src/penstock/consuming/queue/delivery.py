"""Deliveries of single records of a stream."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.abc import Delivery
from penstock.errors import StaleDeliveryError
from penstock.model import Batch, Pointer, Record


@dataclass(slots=True, eq=False)
class QueueDelivery:
    """`abc.Delivery` of a record of a stream."""

    record: Record
    attempt: int
    first: Pointer
    """The part of the partition that it covers: from here up to, not including, `end`."""
    end: Pointer
    number: int
    """The claim that contains it."""
    begun_ms: int
    unsure: bool = field(default=False, repr=False)
    """It may have been settled already: the store did not answer."""


def deliveries_of(
    batch: Batch, first: Pointer, end: Pointer, attempt: int, number: int, now_ms: int
) -> list[QueueDelivery]:
    """A delivery for each record of a batch that a claim from `first` to `end` contains. They cover the whole claim."""
    pointers = batch.pointers()
    low, high = bisect.bisect_left(pointers, first), bisect.bisect_left(pointers, end)
    records = batch if high - low == len(batch) else batch[low:high]
    edges = [first, *pointers[low + 1 : high], end]
    return [
        QueueDelivery(record, attempt, edges[index], edges[index + 1], number, now_ms)
        for index, record in enumerate(records)
    ]


def count_between(batch: Batch, first: Pointer, end: Pointer) -> int:
    """How many records of a batch are in this interval."""
    pointers = batch.pointers()
    return bisect.bisect_left(pointers, end) - bisect.bisect_left(pointers, first)


def adjacent_runs(deliveries: Sequence[QueueDelivery]) -> Iterator[list[QueueDelivery]]:
    """Group deliveries, given in order, into runs without gaps of one claim."""
    run: list[QueueDelivery] = []
    for each in deliveries:
        if run and (each.first, each.number, each.unsure) != (run[-1].end, run[-1].number, run[-1].unsure):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def ours(delivery: Delivery) -> QueueDelivery:
    if not isinstance(delivery, QueueDelivery):
        raise TypeError(f"{delivery!r} is not a delivery of this queue")
    return delivery


def too_late(delivery: QueueDelivery, group: str) -> StaleDeliveryError:
    return StaleDeliveryError(
        f"{delivery.record.place}: settled too late in group {group!r}: it was settled before, or delivered "
        "again. Extend deliveries that take longer, or choose a longer visibility_s"
    )
