"""Feeds with one defect each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import OffsetOutOfRangeError
from penstock.model import Batch, Pointer
from penstock.streams.memory.streams import MemoryFeed, MemoryTopicStream


def with_feeds_of(kind: type[MemoryFeed]) -> type[MemoryTopicStream]:
    class Broken(MemoryTopicStream):
        def feed(self) -> MemoryFeed:
            return kind(self._there())

    return Broken


class Overlaps(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        batches = super().poll(limit, wait_s)
        for batch in batches:
            self._next[batch.partition] = max(batch.start, batch.next - 1)
        return batches


class IgnoresTheLimit(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        return super().poll(limit * 2, wait_s)


class ServesOnePartitionOnly(MemoryFeed):
    def add(self, partition: int, start: Pointer) -> None:
        if partition == 0 or not self._next:
            super().add(partition, start)


class DoesNotPause(MemoryFeed):
    def pause(self, partition: int) -> None:
        return


class LosesWhatItHeldWhenPaused(MemoryFeed):
    def resume(self, partition: int) -> None:
        super().resume(partition)
        self._next[partition] += 3


class DoesNotRemove(MemoryFeed):
    def remove(self, partition: int) -> None:
        return


class IgnoresASecondAdd(MemoryFeed):
    def add(self, partition: int, start: Pointer) -> None:
        if partition not in self._next:
            super().add(partition, start)


class CannotBeWoken(MemoryFeed):
    def wake(self) -> None:
        return


class ForgetsToBeWoken(MemoryFeed):
    """Wakes only who waits already."""

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        self._woken = False
        return super().poll(limit, wait_s)


class Spins(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        return super().poll(limit, 0.0)


class SkipsWhatExpired(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        starts = dict(self._next)
        try:
            return super().poll(limit, wait_s)
        except OffsetOutOfRangeError as error:
            self.add(error.partition, error.start)
            return [Batch(self._topic.name, error.partition, starts[error.partition], error.start)]


class StopsAllWhenOneExpires(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        try:
            return super().poll(limit, wait_s)
        except OffsetOutOfRangeError:
            self._next.clear()
            raise


class BeginsAtTheStart(MemoryFeed):
    def add(self, partition: int, start: Pointer) -> None:
        super().add(partition, 0)


class WaitsTooLong(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        if wait_s > 1:
            threading.Event().wait(min(wait_s, 3.0))
        return super().poll(limit, 0.0)


class LosesKeys(MemoryFeed):
    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        return [
            Batch(
                batch.topic, batch.partition, batch.start, batch.next, [replace(record, key=None) for record in batch]
            )
            for batch in super().poll(limit, wait_s)
        ]
