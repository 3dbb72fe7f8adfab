"""The broker's internal topics, and the partitions as the transaction coordinator sees them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.broker.contracts import OFFSETS_TOPIC, Clock, Marker, StoredBatch
from penstock.broker.syncing import Syncer
from penstock.errors import CorruptBatchError
from penstock.log.batches.batch import TRANSACTIONAL, NewRecord, build_batch, marker_commits, records_of
from penstock.log.batches.scan import BadBytes, WholeBatch
from penstock.log.partition import PartitionLog
from penstock.log.store import Topic, TopicStore

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
_SETTINGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
"""Small segments: startup reads the whole topic, and only sealed segments are compacted."""


def open_internal_topic(topics: TopicStore, name: str, partition_count: int) -> Topic:
    return topics.get(name) or topics.create(name, partition_count, _SETTINGS)


@dataclass(slots=True, eq=False)
class Durability:
    """Makes appended records as safe as this broker makes `acks=all`, then visible to readers."""

    syncer: Syncer
    flushes: bool

    async def make_safe(self, logs: Sequence[PartitionLog]) -> None:
        for log in logs:
            log.write()
        if self.flushes:
            await self.syncer.sync(logs)
        else:
            for log in logs:
                log.publish(log.end_offset)


class StateTopic:
    def __init__(self, topic: Topic, clock: Clock, durability: Durability) -> None:
        self._topic = topic
        self._clock = clock
        self._durability = durability
        self.partition_count = len(topic.partitions)

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        now_ms = self._clock.wall_ms()
        batch = build_batch(
            [NewRecord(now_ms, key, value) for key, value in records],
            attributes=TRANSACTIONAL if producer_id >= 0 else 0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        log = self._topic.partitions[partition]
        log.append_internal(batch)
        await self._durability.make_safe([log])

    def replay(self) -> Iterator[StoredBatch]:
        for log in self._topic.partitions:
            for segment in log.segments:
                for step in segment.batches():
                    reason = step.reason if isinstance(step, BadBytes) else None
                    if isinstance(step, WholeBatch):
                        try:
                            yield _stored(log.partition, step)
                        except CorruptBatchError as error:
                            reason = str(error)
                    if reason is not None:
                        logger.error("%s: the batch at byte %d is skipped: %s", segment.path, step.position, reason)


def _stored(partition: int, found: WholeBatch) -> StoredBatch:
    header = found.header
    control: str | None = None
    records: list[tuple[bytes, bytes | None]] = []
    if header.is_control:
        commits = marker_commits(found.batch)
        control = None if commits is None else "commit" if commits else "abort"
    else:
        records = [(record.key or b"", record.value) for record in records_of(found.batch)]
    return StoredBatch(partition, header.base_offset, header.producer_id, header.is_transactional, control, records)


async def write_markers(
    topics: TopicStore, clock: Clock, durability: Durability, partitions: Iterable[tuple[str, int]], marker: Marker
) -> None:
    """`contracts.WriteMarkers` on the log."""
    logs = [log for topic, number in partitions if (log := topics.partition(topic, number)) is not None]
    now_ms = clock.wall_ms()
    for log in logs:
        log.append_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=now_ms,
        )
    if logs:
        await durability.make_safe(logs)
