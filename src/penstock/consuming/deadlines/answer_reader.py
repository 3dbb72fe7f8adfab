"""Reading answers: the partitions of a topic whose requests this process has, in a thread of its own."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.abc import Feed, TopicStream
from penstock.consuming.loop.polling_feed import feed_of
from penstock.errors import BrokerUnavailableError, OffsetOutOfRangeError, StreamError
from penstock.model import Pointer, Position, Record
from penstock.model.clock import SystemClock

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000
_WAIT_S: Final = 0.2
_AGAIN_S: Final = 0.5


class AnswerReader:
    """Reads the partitions of one topic of answers that belong to this member, in a thread."""

    def __init__(
        self, opened: TopicStream, take: Callable[[Iterable[Record]], None], fail: Callable[[BaseException], None]
    ) -> None:
        self.opened = opened
        self._take = take
        self._fail = fail
        self._changes: collections.deque[tuple[int, Pointer | None]] = collections.deque()
        """Partitions to read from a pointer on, or, with None, no longer."""
        self._feed: Feed | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-answers-{opened.topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, partition: int, start: Pointer) -> None:
        self._change(partition, start)

    def remove(self, partition: int) -> None:
        self._change(partition, None)

    def stop(self) -> None:
        self._stopping.set()
        if self._feed is not None:
            self._feed.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _change(self, partition: int, start: Pointer | None) -> None:
        self._changes.append((partition, start))
        if self._feed is not None:
            self._feed.wake()

    def _run(self) -> None:
        try:
            with contextlib.closing(feed_of(self.opened, SystemClock())) as feed:
                self._feed = feed
                while not self._stopping.is_set():
                    self._read(feed)
        except BaseException as error:
            self._fail(error)

    def _read(self, feed: Feed) -> None:
        while self._changes:
            partition, start = self._changes.popleft()
            if start is None:
                feed.remove(partition)
            else:
                feed.add(partition, start)
        try:
            batches = feed.poll(_AT_ONCE, _WAIT_S)
        except OffsetOutOfRangeError as error:
            logger.warning("answers expired before they were read: %s", error)
            feed.add(error.partition, error.start)
        except (BrokerUnavailableError, StreamError) as error:
            logger.warning("answers in topic %r cannot be read; retrying: %s", self.opened.topic, error)
            self._stopping.wait(_AGAIN_S)
        else:
            for batch in batches:
                self._take(batch)


def records_since(opened: TopicStream, partition: int, from_ms: int) -> Iterator[Record]:
    """The records from a time on that there are now."""
    at, end = opened.locate(partition, Position.at_time(max(0, from_ms))), opened.span(partition)[1]
    while at < end:
        batch = opened.read(partition, at, _AT_ONCE, wait_s=1.0)
        if batch.next == at:
            raise BrokerUnavailableError(f"{opened.topic}-{partition} could not be read to its end")
        yield from batch
        at = batch.next
