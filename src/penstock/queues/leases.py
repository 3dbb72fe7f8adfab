"""Leased deliveries of services that silently accept late settlements (SQS, Pub/Sub).

The lease is timed here: a delivery is stale once its lease, counted from its arrival, is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Leased(Protocol):
    until_s: float
    """When the lease ends, by this process' monotonic clock, unless it is extended."""
    is_settled: bool


D = TypeVar("D", bound=Leased)


class Leases(Generic[D]):
    """The deliveries that were handed out and are not settled. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[D] = set()

    def add(self, deliveries: Iterable[D]) -> None:
        with self._lock:
            self._held.update(deliveries)

    @contextmanager
    def claim(self, deliveries: Sequence[D]) -> Iterator[tuple[list[D], list[D]]]:
        """Yield the deliveries whose lease holds, and the late ones. No other thread settles them meanwhile.

        If the block raises, the outcome at the service is unknown, and the deliveries may be settled again.
        """
        late: list[D] = []
        now_s = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                if delivery.is_settled or delivery.until_s <= now_s:
                    late.append(delivery)
                    self._held.discard(delivery)
                delivery.is_settled = True
        claimed = [delivery for delivery in deliveries if delivery not in late]
        try:
            yield claimed, late
        except BaseException:
            with self._lock:
                for delivery in claimed:
                    delivery.is_settled = False
            raise
        with self._lock:
            self._held.difference_update(claimed)

    def extend(self, deliveries: Sequence[D], lease_s: float, ask: Callable[[list[D]], list[D]]) -> list[D]:
        """Extend the leases by `lease_s` from now, and return the deliveries that are late.

        `ask` asks the service, and returns those that the service calls late.
        """
        began_s = time.monotonic()
        late = [delivery for delivery in deliveries if delivery.is_settled or delivery.until_s <= began_s]
        asked = [delivery for delivery in deliveries if delivery not in late]
        late += ask(asked)
        for delivery in asked:
            if delivery not in late:
                delivery.until_s = began_s + lease_s
        return late

    def clear(self) -> list[D]:
        """Forget all deliveries, and return those whose lease still holds."""
        with self._lock:
            now_s = time.monotonic()
            held = [delivery for delivery in self._held if not delivery.is_settled and delivery.until_s > now_s]
            self._held.clear()
        return held
