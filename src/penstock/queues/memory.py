"""A queue in the memory of this process, for tests and for trying things out."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from penstock.abc import Clock, Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, ConnectionClosedError, StaleDeliveryError
from penstock.model import NewRecord, Record
from penstock.model.clock import SystemClock, wait_on

FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DELAYED_REDELIVERY})


@dataclass(frozen=True, slots=True)
class MemoryDelivery:
    """`abc.Delivery`. Its number tells the times apart that a record was handed out."""

    record: Record
    attempt: int
    number: int


@dataclass(slots=True)
class _Held:
    """A record that somebody has."""

    delivery: MemoryDelivery
    holder: object
    until_s: float


class _Contents:
    """The records of a queue. Everything here is called by who holds `changed`."""

    def __init__(self, visibility_timeout_s: float, clock: Clock) -> None:
        self.changed = threading.Condition()
        self.clock = clock
        self.visibility_timeout_s = visibility_timeout_s
        self.rejected: list[Record] = []
        self._attempts: dict[int, int] = {}
        """How often each record that is not settled was handed out, by its place in the queue."""
        self._ready: list[tuple[int, Record]] = []
        self._delayed: list[tuple[float, int, Record]] = []
        self._held: dict[int, _Held] = {}
        self._places = itertools.count()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, record: NewRecord) -> None:
        place = next(self._places)
        stamp_ms = self.clock.wall_ms() if record.timestamp_ms is None else record.timestamp_ms
        self._attempts[place] = 0
        stored = Record(record.topic, 0, place, record.key, record.value, record.headers, stamp_ms)
        heapq.heappush(self._ready, (place, stored))

    def hand_out(self, limit: int, holder: object) -> list[MemoryDelivery]:
        """The oldest records that nobody has, to this holder."""
        self._take_back_what_is_due()
        now_s = self.clock.monotonic_s()
        deliveries: list[MemoryDelivery] = []
        while self._ready and len(deliveries) < limit:
            place, record = heapq.heappop(self._ready)
            self._attempts[place] += 1
            delivery = MemoryDelivery(record, self._attempts[place], next(self._numbers))
            self._held[delivery.number] = _Held(delivery, holder, now_s + self.visibility_timeout_s)
            deliveries.append(delivery)
        return deliveries

    def settle(self, delivery: MemoryDelivery, outcome: Outcome, delay_s: float) -> None:
        self._take_back_what_is_due()
        if self._held.pop(delivery.number, None) is None:
            record = delivery.record
            raise StaleDeliveryError(
                f"delivery {delivery.attempt} of record {record.offset} was settled too late or twice: the record is "
                f"with somebody else, or about to be; settle within {self.visibility_timeout_s:g} s"
            )
        if outcome is Outcome.RETRY:
            self._put_back(delivery.record, delay_s)
            return
        del self._attempts[delivery.record.offset]
        if outcome is Outcome.REJECT:
            self.rejected.append(delivery.record)

    def take_back_from(self, holder: object) -> None:
        """The holder is gone: others may have what it had."""
        for number, held in list(self._held.items()):
            if held.holder is holder:
                del self._held[number]
                self._put_back(held.delivery.record, 0.0)

    def next_change_s(self) -> float:
        """When something will be ready that is not ready now."""
        times_s = [held.until_s for held in self._held.values()]
        return min(times_s + [due_s for due_s, _, _ in self._delayed[:1]], default=float("inf"))

    def _take_back_what_is_due(self) -> None:
        now_s = self.clock.monotonic_s()
        while self._delayed and self._delayed[0][0] <= now_s:
            _, place, record = heapq.heappop(self._delayed)
            heapq.heappush(self._ready, (place, record))
        for number in [number for number, held in self._held.items() if held.until_s <= now_s]:
            self._put_back(self._held.pop(number).delivery.record, 0.0)

    def _put_back(self, record: Record, delay_s: float) -> None:
        """To its old place, ahead of what was sent after it."""
        if delay_s > 0:
            heapq.heappush(self._delayed, (self.clock.monotonic_s() + delay_s, record.offset, record))
        else:
            heapq.heappush(self._ready, (record.offset, record))


class MemoryQueue:
    """`abc.Queue` with a visibility timeout, on any clock. Threads may share one; `another` is a second connection.

    A delivery that is not settled within `visibility_timeout_s`, or whose connection is closed, is handed out again.
    """

    def __init__(self, visibility_timeout_s: float = 30.0, clock: Clock | None = None) -> None:
        if visibility_timeout_s <= 0:
            raise ConfigError(f"a visibility timeout of {visibility_timeout_s} s leaves no time to do anything")
        self._contents = _Contents(visibility_timeout_s, clock or SystemClock())
        self._closed = False

    def another(self) -> Self:
        """A second connection to the same queue."""
        self._check_open()
        queue = type(self)()
        queue._contents = self._contents
        return queue

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def rejected(self) -> list[Record]:
        """The queue's own dead letters: what was settled with REJECT."""
        with self._contents.changed:
            return list(self._contents.rejected)

    def __len__(self) -> int:
        """How many records are not settled, whether somebody has them or not."""
        with self._contents.changed:
            return len(self._contents)

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        if limit < 1:
            raise ConfigError(f"the limit {limit} is less than 1: nothing could be received")
        contents = self._contents
        until_s = contents.clock.monotonic_s() + wait_s
        with contents.changed:
            while True:  # ends: once the time has come
                self._check_open()
                deliveries = contents.hand_out(limit, self)
                left_s = until_s - contents.clock.monotonic_s()
                if deliveries or left_s <= 0:
                    return deliveries
                change_s = contents.next_change_s() - contents.clock.monotonic_s()
                wait_on(contents.clock, contents.changed, min(left_s, change_s, threading.TIMEOUT_MAX))

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if not isinstance(delivery, MemoryDelivery):
            raise ConfigError(f"{delivery!r} is not a delivery of this queue")
        if delay_s < 0 or (delay_s and outcome is not Outcome.RETRY):
            raise ConfigError(f"a delay of {delay_s} s makes no sense with {outcome}: it is for RETRY, and positive")
        with self._contents.changed:
            self._check_open()
            self._contents.settle(delivery, outcome, delay_s)
            self._contents.changed.notify_all()

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._contents.changed:
            self._check_open()
            for record in records:
                self._contents.add(record)
            self._contents.changed.notify_all()

    def close(self) -> None:
        """What this connection has and has not settled goes to others at once."""
        with self._contents.changed:
            self._closed = True
            self._contents.take_back_from(self)
            self._contents.changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError("this connection to a queue in memory is closed")
