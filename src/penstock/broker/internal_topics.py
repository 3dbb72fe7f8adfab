"""The topics that the broker keeps its own state in, and the partitions as the transaction coordinator sees them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.broker.contracts import Clock, StoredBatch
from penstock.broker.syncing import Syncer
from penstock.errors import CorruptBatchError
from penstock.log.batch import TRANSACTIONAL, NewRecord, build_batch, records_of
from penstock.log.control import marker_commits
from penstock.log.partition import PartitionLog
from penstock.log.scan import Bad, Found
from penstock.log.store import Topic, TopicStore

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
_SETTINGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
"""Small segments: a start reads the whole topic, and only sealed segments are compacted."""


def open_internal_topic(topics: TopicStore, name: str, partition_count: int) -> Topic:
    return topics.get(name) or topics.create(name, partition_count, _SETTINGS)


class Durability:
    """Makes what was appended safe, as safe as this broker makes `acks=all`, and shows it to readers."""

    def __init__(self, syncer: Syncer, flushes: bool) -> None:
        self._syncer = syncer
        self._flushes = flushes

    async def make_safe(self, logs: Sequence[PartitionLog]) -> None:
        for log in logs:
            log.write()
        if self._flushes:
            await self._syncer.sync(logs)
        else:
            for log in logs:
                log.publish(log.end_offset)


class StateTopic:
    """`contracts.InternalTopic` on the log."""

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
        transactional: bool = False,
    ) -> None:
        now_ms = self._clock.wall_ms()
        batch = build_batch(
            [NewRecord(now_ms, key, value) for key, value in records],
            attributes=TRANSACTIONAL if transactional else 0,
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
                    reason = step.reason if isinstance(step, Bad) else None
                    if isinstance(step, Found):
                        try:
                            yield _stored(log.partition, step)
                        except CorruptBatchError as error:
                            reason = str(error)
                    if reason is not None:
                        logger.error("%s: the batch at byte %d is passed over: %s", segment.path, step.position, reason)


def _stored(partition: int, found: Found) -> StoredBatch:
    header = found.header
    control: str | None = None
    records: list[tuple[bytes, bytes | None]] = []
    if header.is_control:
        commits = marker_commits(found.batch)
        control = None if commits is None else "commit" if commits else "abort"
    else:
        records = [(record.key or b"", record.value) for record in records_of(found.batch)]
    return StoredBatch(
        partition,
        header.base_offset,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.is_transactional,
        control,
        records,
    )


class TransactionPartitions:
    """`contracts.Partitions` on the log."""

    def __init__(self, topics: TopicStore, clock: Clock, durability: Durability) -> None:
        self._topics = topics
        self._clock = clock
        self._durability = durability

    def exists(self, topic: str, partition: int) -> bool:
        return self._topics.exists(topic, partition)

    async def write_markers(
        self,
        partitions: Iterable[tuple[str, int]],
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        logs = [log for topic, number in partitions if (log := self._topics.partition(topic, number)) is not None]
        now_ms = self._clock.wall_ms()
        for log in logs:
            log.append_marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                now_ms=now_ms,
            )
        if logs:
            await self._durability.make_safe(logs)
