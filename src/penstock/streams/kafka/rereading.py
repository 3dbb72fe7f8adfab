"""Reading a stream at any pointer, again and again, through feeds that are kept where the last read ended."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.errors import ConfigError
from penstock.model import Batch, Pointer
from penstock.streams.kafka.batch import KafkaBatch
from penstock.streams.kafka.feed import KafkaFeed

_MOST_FEEDS: Final = 8
"""For so many partitions the feed of the last read is kept. Each is a consumer of its own, with threads and sockets."""
_SIGHT_S: Final = 10.0
"""How long a read waits at least to see either a record or the end of the partition."""


class Rereader:
    """Reads of one topic. Those of one partition wait for each other, those of others do not."""

    def __init__(self, topic: str, new_feed: Callable[[], KafkaFeed]) -> None:
        self._topic = topic
        self._new_feed = new_feed
        self._lock = threading.Lock()
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if limit < 1:
            raise ConfigError(f"the limit {limit} is less than 1")
        while True:
            place = self._place_of(partition)
            with place.lock:
                if not place.let_go:  # else another thread has needed its room in the meantime
                    return place.read(partition, start, limit, wait_s)

    def close(self) -> None:
        with self._lock:
            places, self._places = list(self._places.values()), OrderedDict()
        for place in places:
            place.close()

    def _place_of(self, partition: int) -> _Place:
        surplus = None
        with self._lock:
            place = self._places.get(partition)
            if place is None:
                if len(self._places) >= _MOST_FEEDS:
                    _, surplus = self._places.popitem(last=False)
                place = self._places[partition] = _Place(self._topic, self._new_feed)
            self._places.move_to_end(partition)
        if surplus is not None:
            surplus.close()
        return place


class _Place:
    """A feed of one partition, and where it stands."""

    def __init__(self, topic: str, new_feed: Callable[[], KafkaFeed]) -> None:
        self.lock = threading.Lock()
        self.let_go = False
        self._topic = topic
        self._new_feed = new_feed
        self._feed: KafkaFeed | None = None
        self._next: Pointer | None = None

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        if self._feed is None:
            self._feed = self._new_feed()
        if self._next != start:
            self._next = None  # also if what follows fails
            self._feed.add(partition, start)
        self._next, next = None, start
        begun_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begun_s
            sight_s = 0.0 if self._feed.is_at_end(partition) else _SIGHT_S
            left_s = max(wait_s, sight_s) - waited_s
            for batch in self._feed.poll(limit, max(0.0, min(left_s, _SLICE_S))):
                next = batch.next
                if batch:
                    assert isinstance(batch, KafkaBatch)
                    self._next = next
                    return batch.starting_at(start)
            if left_s <= 0:
                self._next = next
                return KafkaBatch(self._topic, partition, start, next)

    def close(self) -> None:
        """Let go of the feed. A read that waits ends with ConnectionClosedError."""
        self.let_go = True
        feed = self._feed
        if feed is not None:
            feed.close()
        with self.lock:
            if self._feed is not None:
                self._feed.close()


_SLICE_S: Final = 0.02
"""A wait is looked at again so often, to see whether the end has come into sight."""
