"""Deliveries of a stream whose partitions are shared record by record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.abc import Delivery
from penstock.errors import StaleDeliveryError
from penstock.model import Pointer, Record


@dataclass(slots=True, eq=False)
class Shared:
    """`abc.Delivery` of a record of a stream."""

    record: Record
    attempt: int
    first: Pointer
    """The part of the partition that it stands for: from here up to, not including, `end`."""
    end: Pointer
    number: int
    """The claim that it is part of."""
    begun_ms: int
    unsure: bool = field(default=False, repr=False)
    """It may have been settled: the store did not answer."""


def shared_of(
    records: Sequence[Record], first: Pointer, end: Pointer, attempt: int, number: int, now_ms: int
) -> list[Shared]:
    """A delivery for each record of a claim. Together they stand for all of the claim."""
    edges = [first, *(record.offset for record in records[1:]), end]
    return [
        Shared(record, attempt, edges[index], edges[index + 1], number, now_ms) for index, record in enumerate(records)
    ]


def neighbours(shared: Sequence[Shared]) -> Iterator[list[Shared]]:
    """Deliveries in the order of their places, in runs without gaps of one claim and attempt."""
    run: list[Shared] = []
    for each in shared:
        if run and (each.first, each.number, each.unsure) != (run[-1].end, run[-1].number, run[-1].unsure):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def ours(delivery: Delivery) -> Shared:
    if not isinstance(delivery, Shared):
        raise TypeError(f"{delivery!r} is no delivery of this queue")
    return delivery


def too_late(shared: Shared, group: str) -> StaleDeliveryError:
    return StaleDeliveryError(
        f"{shared.record.place}: it was settled too late in group {group!r}: it has been settled before, or handed out "
        "again. Extend deliveries that take longer, or choose a longer visibility_s"
    )
