"""Claim and load an assigned partition, and release it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from penstock.abc import CheckpointStore, Clock, Feature, GroupFeed, Resharding, TopicStream
from penstock.consuming.handlers import Handler
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.consuming.loop.checkpointing import CheckpointSaver
from penstock.consuming.loop.suspects import SUSPICIOUS_RESTARTS
from penstock.consuming.loop.tracker import Tracker
from penstock.consuming.options import ConsumerOptions
from penstock.errors import BrokerUnavailableError, FencedError, StreamError
from penstock.model import Checkpoint, CheckpointKey, Guarantee, Lease, Pointer, Position

logger = logging.getLogger(__name__)

RECLAIM_EVERY_S: Final = 1.0
"""How often this member tries to claim a fenced partition again."""


class PartitionOwnership(Protocol):
    """Where the loop gets its partitions from, and returns them to."""

    def take(self, partition: int, lease: Lease | None) -> AssignedPartition: ...

    def restart_at(self, assigned: AssignedPartition, pointer: Pointer) -> AssignedPartition: ...

    def is_claimed(self, assigned: AssignedPartition) -> bool:
        """Whether this member has claimed the checkpoint, in a group of the stream; not with a lease of its group."""

    def release(self, assigned: AssignedPartition) -> None: ...

    def ends(self) -> dict[int, Pointer]: ...

    def is_finished_by_others(self, partition: int) -> bool: ...


class Ownership:
    """Claims and loads checkpoints, and decides where to start."""

    def __init__(
        self,
        stream: TopicStream,
        store: CheckpointStore,
        saver: CheckpointSaver,
        options: ConsumerOptions,
        handler: Handler,
        group: str,
        member: str,
        clock: Clock,
        *,
        dedup_window_s: float,
        stale: Mapping[int, Checkpoint],
        serves_state: bool,
    ) -> None:
        """`stale` are checkpoints of an earlier topic of this name, by partition: they say nothing about this one.
        With `serves_state`, trackers also have the state as it was last saved."""
        self._stream = stream
        self._stale = stale
        self._store = store
        self._saver = saver
        self._options = options
        self._handler = handler
        self._group = group
        self._member = member
        self._clock = clock
        self._dedup_window_s = dedup_window_s
        self._serves_state = serves_state
        self._claimed: set[str] = set()
        self._ends: dict[int, Pointer] | None = None

    def take(self, partition: int, lease: Lease | None) -> AssignedPartition:
        """Take over an assigned partition. Without the `lease` of a lease group, claim its checkpoint."""
        key = CheckpointKey(self._group, self._stream.topic, partition)
        if lease is None:
            lease = self._saver.claim(key, self._member)
            self._claimed.add(lease.name)
        checkpoint = self._store.load(key)
        if checkpoint is None or checkpoint == self._stale.get(partition):
            start = self._stream.locate(partition, self._first_position(partition))
            checkpoint = Checkpoint(start, start)
        elif checkpoint.next > checkpoint.start:
            checkpoint = dataclasses.replace(checkpoint, restarts=checkpoint.restarts + 1)
        return self._assigned_partition(key, lease, checkpoint)

    def _first_position(self, partition: int) -> Position:
        """Where a partition without a checkpoint begins. One that has replaced others continues them."""
        if isinstance(self._stream, Resharding):
            for parent in self._stream.parents(partition):
                if self._store.load(CheckpointKey(self._group, self._stream.topic, parent)) is not None:
                    return Position.EARLIEST
        return self._options.start

    def restart_at(self, assigned: AssignedPartition, pointer: Pointer) -> AssignedPartition:
        """The same partition from another pointer on. What was known about later records is forgotten."""
        tracker = assigned.tracker
        checkpoint = Checkpoint(pointer, pointer, processed=tracker.processed, delivered=tracker.delivered)
        return self._assigned_partition(assigned.key, assigned.lease, checkpoint)

    def is_claimed(self, assigned: AssignedPartition) -> bool:
        return assigned.lease.name in self._claimed

    def release(self, assigned: AssignedPartition) -> None:
        """Release the claim, unless it is the group's own lease."""
        if self.is_claimed(assigned):
            self._claimed.discard(assigned.lease.name)
            self._saver.release(assigned.lease)

    def _assigned_partition(self, key: CheckpointKey, lease: Lease, checkpoint: Checkpoint) -> AssignedPartition:
        tracker = Tracker(
            key,
            checkpoint,
            owner=self._member,
            handler=self._handler.name,
            clock=self._clock,
            dedup_window_s=self._dedup_window_s,
        )
        state = dict(self._store.state(key)) if Feature.STATE in self._store.features else {}
        if self._serves_state:
            tracker.saved_state = dict(state)
        # At most once, no record is handled again, so none can kill a second owner.
        suspicious = self._options.guarantee is not Guarantee.AT_MOST_ONCE and (
            checkpoint.restarts >= SUSPICIOUS_RESTARTS or tracker.any_was_in_hand
        )
        if suspicious:
            logger.warning(
                "%s: earlier owners died between %d and %d; these records are handled in groups, to find the one",
                key,
                checkpoint.start,
                checkpoint.next,
            )
        assigned = AssignedPartition(
            key, lease, tracker, self._clock, state, suspects_end=checkpoint.next if suspicious else checkpoint.start
        )
        assigned.end = self.ends().get(key.partition)
        return assigned

    def ends(self) -> dict[int, Pointer]:
        """Where a run with an `end` stops, for each partition that existed at its start; empty without one."""
        if self._ends is None:
            end = self._options.end
            partitions = () if end is None else self._stream.partitions()
            self._ends = {each: self._stream.locate(each, end) for each in partitions if end is not None}
        return self._ends

    def is_finished_by_others(self, partition: int) -> bool:
        """Whether a partition of another member has reached its end."""
        checkpoint = self._store.load(CheckpointKey(self._group, self._stream.topic, partition))
        start = self._stream.locate(partition, self._options.start) if checkpoint is None else checkpoint.start
        return start >= self.ends()[partition]


class FencedPartitions:
    """Partitions of this member that another owner has claimed, until this member claims them again.

    In a group of the stream, the other owner may be a member that was given the partition before this one and came late
    to claim it. It drops the partition too, and the group does not assign it again. So this member claims it, if a
    commit shows that the group still assigns it here.
    """

    def __init__(self, topic: str, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._fenced: dict[int, tuple[float, Pointer]] = {}
        """By partition: when to try the next time, and what to commit."""

    def add(self, partition: int, pointer: Pointer) -> None:
        self._fenced[partition] = (self._clock.monotonic_s() + RECLAIM_EVERY_S, pointer)

    def forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._fenced.pop(partition, None)

    def claim_due(self, feed: GroupFeed, claim: Callable[[int], None]) -> None:
        """Call `claim` for those that are due, if the group confirms them."""
        for partition, (due_s, pointer) in list(self._fenced.items()):
            if self._clock.monotonic_s() < due_s:
                continue
            try:
                feed.commit({partition: pointer}, wait=True)  # refused if the group has gone on without this member
                claim(partition)
            except (FencedError, StreamError, BrokerUnavailableError) as error:
                logger.info("partition %d of topic %r is not claimed again yet: %s", partition, self._topic, error)
                self.add(partition, pointer)
            else:
                logger.warning(
                    "partition %d of topic %r is claimed again: the group assigns it to this member",
                    partition,
                    self._topic,
                )
                del self._fenced[partition]
