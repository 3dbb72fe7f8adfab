"""Queues for tests of their handlers: one that remembers how it was used, and one as a user would write it."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import penstock
from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.app import App
from penstock.errors import (
    StaleDeliveryError,
)
from penstock.model import NewRecord, Record
from penstock.queues import MemoryQueue


class RecordingQueue(MemoryQueue):
    """Remembers how it was used."""

    def __init__(self, visibility_timeout_s: float = 30.0) -> None:
        super().__init__(visibility_timeout_s, name="jobs")
        self.settled: list[tuple[bytes | None, Outcome, float]] = []
        self.extended: Counter[bytes | None] = Counter()

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        super().settle(delivery, outcome, delay_s)
        self.settled.append((delivery.record.value, outcome, delay_s))

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        self.extended.update(delivery.record.value for delivery in deliveries)
        return super().extend(deliveries)

    def outcomes(self, value: bytes) -> list[str]:
        return [str(outcome) for each, outcome, _ in self.settled if each == value]


class ListQueue:
    """A queue that a user wrote: it keeps no count, cannot delay, and has no dead letters."""

    name = "list"
    features: Features = frozenset({Feature.REDELIVERY})

    @dataclass(frozen=True)
    class Taken:
        record: Record
        attempt: int = 1

    def __init__(self) -> None:
        self._waiting: collections.deque[Record] = collections.deque()
        self._taken: dict[int, Record] = {}
        self._sent = 0
        self._changed = threading.Condition()
        self.outcomes: list[tuple[bytes | None, str]] = []
        self.loses: set[bytes] = set()
        """Values whose first delivery expires before it is settled."""

    def receive(self, limit: int, wait_s: float) -> Sequence[Taken]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, wait_s)
            taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            self._taken.update((record.offset, record) for record in taken)
            return [self.Taken(record) for record in taken]

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0) -> None:
        assert not delay_s, "it cannot delay"
        with self._changed:
            record = self._taken.pop(delivery.record.offset)
            if record.value in self.loses:
                self.loses.discard(record.value)
                self._waiting.append(record)
                raise StaleDeliveryError("too late")
            self.outcomes.append((record.value, str(outcome)))
            if outcome in (Outcome.RETRY, Outcome.RELEASE):
                self._waiting.append(record)
            self._changed.notify()

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._changed:
            for record in records:
                self._waiting.append(Record(self.name, 0, self._sent, record.key, record.value, record.headers, 0))
                self._sent += 1
            self._changed.notify()

    def close(self) -> None:
        pass


def put(queue: penstock.abc.Queue, *values: bytes) -> None:
    queue.send([NewRecord("jobs", value) for value in values])


@contextlib.contextmanager
def running(*apps: App) -> Iterator[None]:
    threads = [app.start() for app in apps]
    try:
        yield
    finally:
        for app in apps:
            app.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "the app did not stop"
