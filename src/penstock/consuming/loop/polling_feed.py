"""A feed for streams that can only read one partition at a time."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock, Feed, Feeding, TopicStream
from penstock.errors import (
    BrokerUnavailableError,
    ConnectionClosedError,
    OffsetOutOfRangeError,
    StorageError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import Batch, Pointer
from penstock.model.clock import wait_on
from penstock.model.retry import Retry

logger = logging.getLogger(__name__)

RETRIABLE: Final = (StreamError, BrokerUnavailableError, StorageError, UnknownTopicError, OSError)
"""Errors of a read that is retried: the stream is unavailable, or the topic does not exist yet."""

BACKOFF: Final = Retry(first_delay_s=0.1, factor=2.0, max_delay_s=10.0, jitter=0.5)
_THREADS: Final = 16
"""How many partitions are read at once."""
_READ_S: Final = 0.5
"""How long one read waits. A read cannot be cancelled, so `close` may take this long, too."""
_ROUND_S: Final = 0.25
"""With more partitions than threads: how long one round over all idle partitions takes."""
_SHORTEST_READ_S: Final = 0.005
_CLOSING_S: Final = 5.0
_AHEAD: Final = 2
"""How many batches of a partition are read ahead."""
_LIMIT: Final = 500
"""How many records a read asks for before the first `poll` sets the limit."""


class _Partition:
    """One added partition. Adding it again creates a new object, so that results of late reads are recognised."""

    __slots__ = ("ahead", "due_s", "error", "failures", "number", "paused", "position", "reading")

    def __init__(self, number: int, position: Pointer) -> None:
        self.number = number
        self.position = position
        """Where the next read begins."""
        self.ahead: deque[Batch] = deque()
        self.paused = False
        self.reading = False
        self.due_s = float("-inf")
        """No read before this time."""
        self.failures = 0
        self.error: Exception | None = None
        """Why it cannot be read any further. Raised after the batches read before were polled."""

    @property
    def wanted(self) -> bool:
        return not self.paused and self.error is None and len(self.ahead) < _AHEAD


class PollingFeed:
    """`abc.Feed` on top of `TopicStream.read`, with one reading thread for each partition, at most 16.

    Up to two batches of each partition are read ahead. With more partitions than threads, the idle ones are read in
    turn with shorter waits, so that each is checked several times a second. A partition whose read fails is retried
    with backoff, at most 10 s, while the others continue. Errors that a retry cannot fix are raised by `poll`, and the
    partition is removed.
    """

    def __init__(self, stream: TopicStream, clock: Clock, *, threads: int = _THREADS, backoff: Retry = BACKOFF) -> None:
        self._stream = stream
        self._clock = clock
        self._most_threads = threads
        self._backoff = backoff
        self._random = random.Random()
        lock = threading.RLock()
        self._arrived = threading.Condition(lock)
        """`poll` waits for this."""
        self._wanted = threading.Condition(lock)
        """The reading threads wait for this."""
        self._read_order: deque[_Partition] = deque()
        """In the order in which they are read."""
        self._partitions: dict[int, _Partition] = {}
        """In the order in which `poll` takes from them."""
        self._threads: list[threading.Thread] = []
        self._limit = _LIMIT
        self._woken = False
        self._closed = False

    def add(self, partition: int, start: Pointer) -> None:
        with self._wanted:
            self._check_open()
            paused = partition in self._partitions and self._partitions[partition].paused
            self._drop(partition)
            added = _Partition(partition, start)
            added.paused = paused
            self._partitions[partition] = added
            self._read_order.append(added)
            if len(self._threads) < min(self._most_threads, len(self._partitions)):
                name = f"penstock-pull-{self._stream.topic}-{len(self._threads)}"
                thread = threading.Thread(target=self._read_forever, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._wanted.notify()

    def remove(self, partition: int) -> None:
        with self._wanted:
            self._drop(partition)

    def pause(self, partition: int) -> None:
        with self._wanted:
            if partition in self._partitions:
                self._partitions[partition].paused = True

    def resume(self, partition: int) -> None:
        with self._wanted:
            if partition in self._partitions:
                self._partitions[partition].paused = False
                self._wanted.notify()
                self._arrived.notify()

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        deadline_s = self._clock.monotonic_s() + wait_s
        with self._arrived:
            self._limit = max(1, limit)
            while True:
                self._check_open()
                self._raise_read_error()
                batches = self._take(limit)
                left_s = deadline_s - self._clock.monotonic_s()
                if batches or self._woken or left_s <= 0:
                    self._woken = False
                    return batches
                wait_on(self._clock, self._arrived, left_s)

    def wake(self) -> None:
        with self._arrived:
            self._woken = True
            self._arrived.notify_all()

    def close(self) -> None:
        """Close the feed and wait for reads that have started, at most 5 s."""
        with self._arrived:
            self._closed = True
            self._partitions.clear()
            self._read_order.clear()
            self._arrived.notify_all()
            self._wanted.notify_all()
        until_s = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
            if thread.is_alive():
                logger.warning("a read of %s does not return; its thread ends when it does", self._stream.topic)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the feed of {self._stream.topic!r} is closed")

    def _drop(self, partition: int) -> None:
        dropped = self._partitions.pop(partition, None)
        if dropped is not None:
            self._read_order.remove(dropped)

    def _raise_read_error(self) -> None:
        for partition in self._partitions.values():
            if partition.error is not None and not partition.ahead and not partition.paused:
                self._drop(partition.number)
                raise partition.error

    def _take(self, limit: int) -> list[Batch]:
        """Take at most `limit` records. A partition that gave some comes last the next time."""
        batches: list[Batch] = []
        left = limit
        for partition in list(self._partitions.values()):
            if partition.paused:
                continue
            while left > 0 and partition.ahead:
                batch = partition.ahead.popleft()
                if len(batch) > left:
                    batch, rest = _split(batch, left)
                    partition.ahead.appendleft(rest)
                left -= len(batch)
                batches.append(batch)
                self._partitions[partition.number] = self._partitions.pop(partition.number)
            if left <= 0:
                break
        if batches:
            self._wanted.notify(len(batches))
        return batches

    def _read_forever(self) -> None:
        while True:
            with self._wanted:
                read = self._next_read()
                if read is None:
                    return
                partition, limit, wait_s = read
                began_s = self._clock.monotonic_s()
            try:
                batch = self._stream.read(partition.number, partition.position, limit, wait_s)
            except Exception as error:
                self._read_failed(partition, error)
            else:
                self._read_succeeded(partition, batch, began_s + wait_s)

    def _next_read(self) -> tuple[_Partition, int, float] | None:
        """The partition to read now, the limit, and how long to wait; None when the feed is closed."""
        while not self._closed:
            now_s = self._clock.monotonic_s()
            wanted = [partition for partition in self._read_order if partition.wanted]
            due = [partition for partition in wanted if not partition.reading and partition.due_s <= now_s]
            if due:
                partition = due[0]
                partition.reading = True
                self._read_order.remove(partition)
                self._read_order.append(partition)
                return partition, self._limit, self._read_wait_s(len(wanted))
            later = [partition.due_s - now_s for partition in wanted if not partition.reading]
            wait_on(self._clock, self._wanted, min(later, default=None))
        return None

    def _read_wait_s(self, wanted: int) -> float:
        threads = len(self._threads)
        if wanted <= threads:
            return _READ_S
        return max(_SHORTEST_READ_S, _ROUND_S * threads / wanted)

    def _read_succeeded(self, partition: _Partition, batch: Batch, waited_until_s: float) -> None:
        with self._wanted:
            partition.reading = False
            if self._partitions.get(partition.number) is not partition:
                return
            if partition.failures:
                logger.info("%s-%d can be read again", self._stream.topic, partition.number)
                partition.failures = 0
            if len(batch) or batch.next != batch.start:
                partition.position = batch.next
                partition.ahead.append(batch)
                self._arrived.notify()
            else:
                # A read that returns nothing before its wait is over is not repeated at once: it would spin.
                partition.due_s = waited_until_s

    def _read_failed(self, partition: _Partition, error: Exception) -> None:
        with self._wanted:
            partition.reading = False
            if self._partitions.get(partition.number) is not partition:
                logger.debug("a read of the removed partition %s-%d failed", self._stream.topic, partition.number)
                return
            if isinstance(error, OffsetOutOfRangeError) or not isinstance(error, RETRIABLE):
                partition.error = error
                self._arrived.notify()
                return
            partition.failures += 1
            pause_s = self._backoff.backoff_s(partition.failures, self._random)
            partition.due_s = self._clock.monotonic_s() + pause_s
            level = logging.WARNING if partition.failures == 1 else logging.DEBUG
            place = f"{self._stream.topic}-{partition.number}"
            logger.log(
                level, "%s could not be read (%s); retrying in %.1f s and until it succeeds", place, error, pause_s
            )


def feed_of(stream: TopicStream, clock: Clock) -> Feed:
    """The stream's own feed if it has one, else a PollingFeed, which also waits for a topic that does not exist."""
    if isinstance(stream, Feeding):
        try:
            return stream.feed()
        except UnknownTopicError:
            logger.info("%s does not exist yet; it is polled until it does", stream.topic)
    return PollingFeed(stream, clock)


def _split(batch: Batch, count: int) -> tuple[Batch, Batch]:
    """The first `count` records and the rest."""
    middle = batch[count].offset
    first = Batch(batch.topic, batch.partition, batch.start, middle, batch[:count])
    return first, Batch(batch.topic, batch.partition, middle, batch.next, batch[count:])
