"""A queue in memory, for tests and experiments."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock.abc import Clock, Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, ConnectionClosedError, StaleDeliveryError
from penstock.model import NewRecord, Record
from penstock.model.clock import SystemClock, wait_on
from penstock.queues.queue_base import check_limit
from penstock.streams.schemes import check_options

FEATURES: Final[Features] = frozenset(
    {
        Feature.KEYS,
        Feature.HEADERS,
        Feature.REDELIVERY,
        Feature.DELAYED_REDELIVERY,
        Feature.DELIVERY_COUNT,
        Feature.DEAD_LETTERS,
    }
)
AGAIN: Final = (Outcome.RETRY, Outcome.RELEASE)


@dataclass(frozen=True, slots=True)
class MemoryDelivery:
    """`abc.Delivery`. Its attempt number tells deliveries of one record apart."""

    record: Record
    attempt: int
    number: int


@dataclass(slots=True)
class _Held:
    """A record that was delivered and is not settled."""

    delivery: MemoryDelivery
    holder: object
    until_s: float


class _Contents:
    """The records of a queue. The caller of every method must hold `changed`."""

    def __init__(self, name: str, visibility_timeout_s: float, clock: Clock) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.clock = clock
        self.visibility_timeout_s = visibility_timeout_s
        self.rejected: list[Record] = []
        self._attempts: dict[int, int] = {}
        """How often each unsettled record was delivered, by its offset."""
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
        stored = Record(self.name, 0, place, record.key, record.value, record.headers, stamp_ms)
        heapq.heappush(self._ready, (place, stored))

    def hand_out(self, limit: int, holder: object) -> list[MemoryDelivery]:
        """Deliver the oldest available records to this holder."""
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

    def waiting(self) -> int:
        self._take_back_what_is_due()
        return len(self._ready)

    def settle(self, delivery: MemoryDelivery, outcome: Outcome, delay_s: float) -> None:
        self._take_back_what_is_due()
        if self._held.pop(delivery.number, None) is None:
            record = delivery.record
            raise StaleDeliveryError(
                f"delivery {delivery.attempt} of record {record.offset} was settled too late or twice: the record was "
                f"delivered again, or will be; settle within {self.visibility_timeout_s:g} s"
            )
        if outcome is Outcome.RELEASE:
            self._attempts[delivery.record.offset] -= 1
        if outcome in AGAIN:
            self._put_back(delivery.record, delay_s)
            return
        del self._attempts[delivery.record.offset]
        if outcome is Outcome.REJECT:
            self.rejected.append(delivery.record)

    def extend(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        self._take_back_what_is_due()
        until_s = self.clock.monotonic_s() + self.visibility_timeout_s
        late: list[Delivery] = []
        for delivery in deliveries:
            held = self._held.get(_ours(delivery).number)
            if held is None:
                late.append(delivery)
            else:
                held.until_s = until_s
        return late

    def take_back_from(self, holder: object) -> None:
        """Make the unsettled deliveries of a closed connection available again."""
        for number, held in list(self._held.items()):
            if held.holder is holder:
                del self._held[number]
                self._put_back(held.delivery.record, 0.0)

    def next_change_s(self) -> float:
        """When the next delayed or unsettled record becomes available."""
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
        """Put the record back in its old position, before later records."""
        if delay_s > 0:
            heapq.heappush(self._delayed, (self.clock.monotonic_s() + delay_s, record.offset, record))
        else:
            heapq.heappush(self._ready, (record.offset, record))


def open_memory(url: str, options: Mapping[str, Any]) -> MemoryQueue:
    """Open `memory:NAME`: the same queue in the whole process. The first to open it may set `visibility_timeout_s`."""
    check_options(url, options, ["visibility_timeout_s"])
    with _naming:
        name = url.partition(":")[2]
        if name not in _named:
            _named[name] = MemoryQueue(**options, name=name or "queue")
        return _named[name].another()


class MemoryQueue:
    """`abc.Queue` with a visibility timeout, on any clock. Thread-safe; `another` opens a second connection.

    A delivery that is not settled within `visibility_timeout_s`, or whose connection is closed, is delivered again.
    """

    def __init__(self, visibility_timeout_s: float = 30.0, clock: Clock | None = None, *, name: str = "queue") -> None:
        if visibility_timeout_s <= 0:
            raise ConfigError(f"visibility_timeout_s={visibility_timeout_s} must be positive")
        self._contents = _Contents(name, visibility_timeout_s, clock or SystemClock())
        self._closed = False

    def another(self) -> Self:
        """Open a second connection to the same queue."""
        self._check_open()
        queue = type(self)()
        queue._contents = self._contents
        return queue

    @property
    def name(self) -> str:
        return self._contents.name

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def visibility_timeout_s(self) -> float:
        return self._contents.visibility_timeout_s

    @property
    def rejected(self) -> list[Record]:
        """The queue's own dead letters: records settled with REJECT."""
        with self._contents.changed:
            return list(self._contents.rejected)

    def waiting(self) -> int:
        """The number of records that could be delivered now."""
        with self._contents.changed:
            self._check_open()
            return self._contents.waiting()

    def __len__(self) -> int:
        """The number of records that are not settled."""
        with self._contents.changed:
            return len(self._contents)

    def receive(self, limit: int, wait_s: float) -> Sequence[MemoryDelivery]:
        check_limit(limit)
        contents = self._contents
        until_s = contents.clock.monotonic_s() + wait_s
        with contents.changed:
            while True:  # ends when the time is over
                self._check_open()
                deliveries = contents.hand_out(limit, self)
                left_s = until_s - contents.clock.monotonic_s()
                if deliveries or left_s <= 0:
                    return deliveries
                change_s = contents.next_change_s() - contents.clock.monotonic_s()
                wait_on(contents.clock, contents.changed, min(left_s, change_s, threading.TIMEOUT_MAX))

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        if delay_s < 0 or (delay_s and outcome not in AGAIN):
            raise ConfigError(f"delay_s={delay_s} with {outcome}: a delay is for RETRY or RELEASE, and not negative")
        with self._contents.changed:
            self._check_open()
            self._contents.settle(_ours(delivery), outcome, delay_s)
            self._contents.changed.notify_all()

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        with self._contents.changed:
            self._check_open()
            return self._contents.extend(deliveries)

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._contents.changed:
            self._check_open()
            for record in records:
                self._contents.add(record)
            self._contents.changed.notify_all()

    def close(self) -> None:
        """Make what this connection received and did not settle available to others at once."""
        with self._contents.changed:
            self._closed = True
            self._contents.take_back_from(self)
            self._contents.changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError("this connection to a queue in memory is closed")


def _ours(delivery: Delivery) -> MemoryDelivery:
    if not isinstance(delivery, MemoryDelivery):
        raise ConfigError(f"{delivery!r} is not a delivery of this queue")
    return delivery


_named: Final[dict[str, MemoryQueue]] = {}
_naming: Final = threading.Lock()
