"""Several partitions of a topic in memory, as `abc.Feed`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConnectionClosedError, OffsetOutOfRangeError
from penstock.model import Batch, Pointer
from penstock.streams.memory.topic import Topic, check_limit


class MemoryFeed:
    """Waits for all of its partitions at once. The partition that was served last has its turn last."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._next: dict[int, Pointer] = {}
        """Where each partition goes on, in the order in which they have their turn."""
        self._paused: set[int] = set()
        self._woken = False
        self._closed = False

    def add(self, partition: int, start: Pointer) -> None:
        with self._topic.changed:
            self._check_open()
            self._topic.partition(partition)
            self._next[partition] = start

    def remove(self, partition: int) -> None:
        with self._topic.changed:
            self._next.pop(partition, None)
            self._paused.discard(partition)

    def pause(self, partition: int) -> None:
        with self._topic.changed:
            self._check_open()
            self._paused.add(partition)

    def resume(self, partition: int) -> None:
        with self._topic.changed:
            self._check_open()
            self._paused.discard(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        check_limit(limit)
        until_s = self._topic.clock.monotonic_s() + wait_s
        with self._topic.changed:
            while True:  # ends: `wait` is False once the time has come
                self._check_open()
                self._check_ranges()
                batches = self._take(limit)
                if batches:
                    return batches
                if self._woken or not self._topic.wait(until_s):
                    self._woken = False
                    return ()

    def wake(self) -> None:
        with self._topic.changed:
            self._woken = True
            self._topic.changed.notify_all()

    def close(self) -> None:
        with self._topic.changed:
            self._closed = True
            self._topic.changed.notify_all()

    def _check_ranges(self) -> None:
        """Before anything is taken, so that nothing of the others is lost with the error."""
        for partition, start in self._next.items():
            if partition in self._paused:
                continue
            try:
                self._topic.check_in_range(partition, start)
            except OffsetOutOfRangeError:
                self.remove(partition)
                raise

    def _take(self, limit: int) -> list[Batch]:
        """A batch without records is taken too, where there is nothing to read up to its end."""
        batches = []
        for partition in list(self._next):
            if partition in self._paused:
                continue
            start = self._next[partition]
            batch = self._topic.batch(partition, start, limit)
            if batch.next == start:
                continue
            del self._next[partition]
            self._next[partition] = batch.next
            batches.append(batch)
            limit -= len(batch)
            if limit == 0:
                break
        return batches

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the feed of topic {self._topic.name!r} is closed")
