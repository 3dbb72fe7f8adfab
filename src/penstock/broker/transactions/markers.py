"""Writing the marker of a decision to every partition of a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.broker.contracts import Partitions
from penstock.broker.transactions.states import TopicPartition
from penstock.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetsMarked(Protocol):
    """Told when a marker has been written to a partition of `__consumer_offsets`.

    The group coordinator then makes the offsets of that transaction count, or forgets them. It may be told twice.
    """

    def __call__(self, producer_id: int, *, commit: bool, partition: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


class MarkerWriter:
    def __init__(self, partitions: Partitions, on_offsets_marked: OffsetsMarked) -> None:
        self._partitions = partitions
        self._on_offsets_marked = on_offsets_marked

    async def write(self, partitions: Iterable[TopicPartition], marker: Marker) -> dict[TopicPartition, Exception]:
        """Mark every partition that can be marked; answer which could not, and why. Nothing is lost by trying again."""
        wanted = sorted(partitions)
        try:
            await self._write(wanted, marker)
        except Exception as error:
            if len(wanted) == 1:
                return {wanted[0]: error}
            # One of them refused. The readers of the others need not wait for it.
            failed: dict[TopicPartition, Exception] = {}
            for partition in wanted:
                failed.update(await self.write([partition], marker))
            return failed
        return {}

    async def _write(self, partitions: list[TopicPartition], marker: Marker) -> None:
        if not partitions:
            return
        await self._partitions.write_markers(
            partitions,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
        for topic, partition in partitions:
            if topic == OFFSETS_TOPIC:
                self._on_offsets_marked(marker.producer_id, commit=marker.commit, partition=partition)


def is_past(error: Exception) -> bool:
    """Whether a partition refused a marker because a later one for that producer stands there already.

    An operator can do that by force (WriteTxnMarkers under a higher epoch). The transaction has ended there.
    """
    return isinstance(error, InvalidProducerEpochError | TransactionCoordinatorFencedError)
