"""`ReceiveBuffer`: what arrived on a channel waits for `listen` in a buffer of limited size."""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence

from penstock.errors import ConfigError, ConnectionClosedError, PenstockError
from penstock.model import Headers, Record

Arrived = tuple[bytes | None, bytes | None, Headers, int | None]
"""Value, key, headers and timestamp of a record."""


def check_limit(limit: int) -> None:
    """Raise ConfigError unless `limit` is valid for `abc.Channel.listen`."""
    if limit < 1:
        raise ConfigError(f"limit={limit} must be an integer >= 1")


class ReceiveBuffer:
    """Holds a channel's records from `put` to `take`, and numbers them: their offsets. Thread-safe."""

    def __init__(self, topic: str, capacity: int) -> None:
        """`topic` is the name of the channel, `capacity` how many records wait at most."""
        if capacity < 1:
            raise ConfigError(f"buffer={capacity} must be an integer >= 1")
        self._topic = topic
        self._capacity = capacity
        self._records: collections.deque[Record] = collections.deque()
        self._offsets = itertools.count()
        self._changed = threading.Condition()
        self._problem: PenstockError | None = None
        self._closed = False
        self._lost = 0

    @property
    def lost(self) -> int:
        """The number of records for which there was no room."""
        return self._lost

    def put(
        self, value: bytes | None, key: bytes | None = None, headers: Headers = (), timestamp_ms: int | None = None
    ) -> bool:
        """Add a record that arrived. False if there is no room, or the channel is closed: the record counts as lost."""
        with self._changed:
            if self._closed or len(self._records) >= self._capacity:
                self._lost += 1
                return False
            self._records.append(Record(self._topic, 0, next(self._offsets), key, value, headers, timestamp_ms))
            self._changed.notify_all()
            return True

    def put_all(self, arrived: Sequence[Arrived]) -> None:
        """Add records that arrived together. Those without room count as lost."""
        with self._changed:
            room = 0 if self._closed else max(0, self._capacity - len(self._records))
            self._records.extend(
                Record(self._topic, 0, next(self._offsets), key, value, headers, stamp_ms)
                for value, key, headers, stamp_ms in arrived[:room]
            )
            self._lost += max(0, len(arrived) - room)
            self._changed.notify_all()

    def put_request(
        self, arrived: Sequence[Arrived], before: Callable[[Sequence[Record]], None], wait_s: float = 0.0
    ) -> bool:
        """Add the records of a request, all or none, and call `before` with them just before.

        False if there was no room within `wait_s`, or the channel is closed. Nothing is lost then, as the sender can be
        told, or made to wait. A request of any size fits into an empty buffer.
        """

        def has_room() -> bool:
            return self._closed or not self._records or len(self._records) + len(arrived) <= self._capacity

        with self._changed:
            if not self._changed.wait_for(has_room, wait_s) or self._closed:
                return False
            records = [
                Record(self._topic, 0, next(self._offsets), key, value, headers, stamp_ms)
                for value, key, headers, stamp_ms in arrived
            ]
            before(records)
            self._records.extend(records)
            self._changed.notify_all()
            return True

    def wait_for_room(self, timeout_s: float) -> bool:
        """Whether there is room, after waiting for it. For transports whose senders can be made to wait."""
        with self._changed:
            return (
                self._changed.wait_for(lambda: self._closed or len(self._records) < self._capacity, timeout_s)
                and not self._closed
            )

    def take(self, limit: int, wait_s: float) -> Sequence[Record]:
        """Return records, as `abc.Channel.listen` does. If there are none, raise the problem that was reported."""
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        with self._changed:
            while not self._records:
                self.check_open()
                if self._problem is not None:
                    raise self._problem
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return []
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self.check_open()
            taken = [self._records.popleft() for _ in range(min(limit, len(self._records)))]
            self._changed.notify_all()
            return taken

    def report(self, problem: PenstockError | None) -> None:
        """Set the problem because of which nothing arrives now; None once it is over."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everybody who waits."""
        with self._changed:
            self._closed = True
            self._records.clear()
            self._changed.notify_all()

    def check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the channel {self._topic} is closed")
