"""Owning: from a partition that the group has given us to a share that can be worked on, and back."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from penstock.abc import CheckpointStore, Clock, Feature, Stream
from penstock.consuming.handlers import Handler
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.saving import Saving
from penstock.consuming.share import Share
from penstock.consuming.tracker import DIED, Tracker
from penstock.model import Checkpoint, CheckpointKey, Lease, Pointer

logger = logging.getLogger(__name__)

SUSPICIOUS_RESTARTS: Final = 3
"""The so-manyth owner in a row, after others that ended without a word and without getting on, is careful."""


class Owning:
    """Claims checkpoints, loads them, and decides where to begin."""

    def __init__(
        self,
        stream: Stream,
        store: CheckpointStore,
        saving: Saving,
        options: ConsumerOptions,
        handler: Handler,
        group: str,
        member: str,
        clock: Clock,
        *,
        dedup_window_s: float,
    ) -> None:
        self._stream = stream
        self._store = store
        self._saving = saving
        self._options = options
        self._handler = handler
        self._group = group
        self._member = member
        self._clock = clock
        self._dedup_window_s = dedup_window_s
        self._claimed: set[str] = set()
        self._ends: dict[int, Pointer] | None = None

    def take(self, partition: int, lease: Lease | None) -> Share:
        """The partition is ours. `lease` is given where the group is kept by leases; else the checkpoint is claimed."""
        key = CheckpointKey(self._group, self._stream.topic, partition)
        if lease is None:
            lease = self._saving.claim(key, self._member)
            self._claimed.add(lease.name)
        checkpoint = self._store.load(key)
        if checkpoint is None:
            start = self._stream.locate(partition, self._options.start)
            checkpoint = Checkpoint(start, start)
        elif checkpoint.next > checkpoint.start:
            checkpoint = dataclasses.replace(checkpoint, restarts=checkpoint.restarts + 1)
        return self._share(key, lease, checkpoint)

    def restarted(self, share: Share, pointer: Pointer) -> Share:
        """The same partition, from another place: what was known about it from there on is forgotten."""
        tracker = share.tracker
        checkpoint = Checkpoint(pointer, pointer, processed=tracker.processed, delivered=tracker.delivered)
        return self._share(share.key, share.lease, checkpoint)

    def give_back(self, share: Share) -> None:
        """Release the claim, where it was we who made it."""
        if share.lease.name in self._claimed:
            self._claimed.discard(share.lease.name)
            self._saving.release(share.lease)

    def _share(self, key: CheckpointKey, lease: Lease, checkpoint: Checkpoint) -> Share:
        tracker = Tracker(
            key,
            checkpoint,
            owner=self._member,
            handler=self._handler.name,
            clock=self._clock,
            dedup_window_s=self._dedup_window_s,
        )
        state = dict(self._store.state(key)) if Feature.STATE in self._store.features else {}
        suspicious = checkpoint.restarts >= SUSPICIOUS_RESTARTS or any(
            failing.error == DIED for failing in checkpoint.failing
        )
        if suspicious:
            logger.warning(
                "%s: owners before this one died between %d and %d; these records are handled one at a time",
                key,
                checkpoint.start,
                checkpoint.next,
            )
        share = Share(
            key, lease, tracker, self._clock, state, suspects_end=checkpoint.next if suspicious else checkpoint.start
        )
        share.end = self.ends().get(key.partition)
        return share

    def ends(self) -> dict[int, Pointer]:
        """Where a run that ends by itself ends, in each partition that there was when it began; else nothing."""
        if self._ends is None:
            end = self._options.end
            partitions = () if end is None else self._stream.partitions()
            self._ends = {each: self._stream.locate(each, end) for each in partitions if end is not None}
        return self._ends

    def is_finished_by_others(self, partition: int) -> bool:
        """Whether a partition that is not ours has come to its end."""
        checkpoint = self._store.load(CheckpointKey(self._group, self._stream.topic, partition))
        start = self._stream.locate(partition, self._options.start) if checkpoint is None else checkpoint.start
        return start >= self.ends()[partition]
