"""Topics that are polled: of systems that do not tell their readers when there is more."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from penstock.model import Batch, Pointer
from penstock.streams.adapting.stream_base import TopicBase, check_limit


class Wakeups:
    """Wakes readers of a topic that has new records, as far as this process learns of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: defaultdict[str, int] = defaultdict(int)

    def seen(self, topic: str) -> int:
        """Ask before reading, and pass it to `wait`, so that nothing in between is missed."""
        return self._news[topic]

    def tell(self, topic: str) -> None:
        with self._changed:
            self._news[topic] += 1
            self._changed.notify_all()

    def tell_all(self) -> None:
        with self._changed:
            for topic in self._news:
                self._news[topic] += 1
            self._changed.notify_all()

    def wait(self, topic: str, seen: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._news[topic] != seen, timeout_s)


class PolledTopic(TopicBase):
    """The base of topics whose `read` polls."""

    def __init__(self, topic: str, wakeups: Wakeups, poll_interval_s: float) -> None:
        super().__init__(topic)
        self._wakeups = wakeups
        self._poll_interval_s = poll_interval_s

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        while True:  # ends when the wait is over
            self._check_open()
            seen = self._wakeups.seen(self.topic)
            batch = self._batch(partition, start, limit)
            left_s = until_s - time.monotonic()
            if len(batch) or left_s <= 0:
                return batch
            self._wakeups.wait(self.topic, seen, min(left_s, self._poll_interval_s))

    def close(self) -> None:
        """Close the topic. A `read` that waits raises ConnectionClosedError."""
        self._is_closed = True
        self._wakeups.tell(self.topic)

    def _batch(self, partition: int, start: Pointer, limit: int) -> Batch:
        raise NotImplementedError
