"""The live tail of a topic: new messages, limited to what a person can follow."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from penstock.console.link import Link
from penstock.console.messages.browsing import bounded_feed, size_of
from penstock.console.messages.view_settings import ViewSettings
from penstock.console.views import MessageQuery, MessageRow
from penstock.errors import ClosedError, ConfigError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import Pointer
from penstock.model.closing import Closing

MOST_ROWS: Final = 1_000
_POLL_RECORDS: Final = 2_000
_LOOKED_AT: Final = 20_000
"""How many records one `poll` examines. A tail that is further behind jumps to the end."""
_SLICE_S: Final = 0.5
_FETCH_WAIT_MS: Final = 250


class Tail(Closing):
    """A reader of new messages. It reads only while it is polled, so a hidden page costs nothing.

    Each poll returns at most `limit` rows, the newest: the others are skipped and counted in `dropped`.
    """

    def __init__(self, link: Link, query: MessageQuery, view: ViewSettings) -> None:
        if not 1 <= query.limit <= MOST_ROWS:
            raise ConfigError(f"a tail gives 1 to {MOST_ROWS:,} messages at a time, not {query.limit:,}")
        topics = link.topics()
        there = topics.partitions_of(query.topic)
        if query.partition is not None and query.partition not in there:
            raise UnknownTopicError(f"topic {query.topic!r} has no partition {query.partition}: it has {len(there)}")
        self._partitions = there if query.partition is None else (query.partition,)
        self._link = link
        self._is_counted = link.is_counted
        self._query = query
        self._view = view
        self._lock = threading.Lock()
        self.is_closed = False
        self._next: dict[int, Pointer] = topics.latest(query.topic, self._partitions)
        self._feed = bounded_feed(link, query.topic, self._partitions, fetch_wait_ms=_FETCH_WAIT_MS)
        for partition, end in self._next.items():
            self._feed.add(partition, end)
        self.dropped = 0
        self.polled_s = time.monotonic()

    def poll(self, wait_s: float) -> list[MessageRow]:
        """New matching messages as soon as there are any, oldest first; none after `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        rows: deque[MessageRow] = deque(maxlen=self._query.limit)
        looked_at = 0
        with self._lock:
            while True:
                self._check_open()
                self.polled_s = time.monotonic()
                left_s = deadline_s - self.polled_s
                came = self._read(rows, max(0.0, min(_SLICE_S, left_s)) if not rows else 0.0)
                looked_at += came
                if looked_at >= _LOOKED_AT:
                    self._catch_up()
                    return list(rows)
                if (rows and not came) or left_s <= 0:
                    return list(rows)

    def close(self) -> None:
        self.is_closed = True
        self._feed.close()

    def _read(self, rows: deque[MessageRow], wait_s: float) -> int:
        """Take in new records, and return how many there were."""
        came = 0
        try:
            for batch in self._feed.poll(_POLL_RECORDS, wait_s):
                self._next[batch.partition] = batch.next
                came += len(batch)
                for record in batch:
                    size_bytes = size_of(record)
                    if self._view.wants(record, size_bytes):
                        self.dropped += len(rows) == rows.maxlen
                        rows.append(self._view.row(record, size_bytes))
        except OffsetOutOfRangeError as error:  # retention was faster
            self.dropped += max(0, error.start - self._next[error.partition]) if self._is_counted else 1
            self._move(error.partition, error.start)
        return came

    def _catch_up(self) -> None:
        """Jump to the end, as more arrives than can be examined."""
        ends = self._link.topics().latest(self._query.topic, self._partitions)
        for partition, end in ends.items():
            behind = end - self._next[partition]
            if behind > (self._query.limit if self._is_counted else 0):
                self.dropped += behind if self._is_counted else 1
                self._move(partition, end)

    def _move(self, partition: int, pointer: Pointer) -> None:
        self._next[partition] = pointer
        self._feed.add(partition, pointer)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"the tail of topic {self._query.topic!r} was closed: open another")
