"""Reading several topics with one reader: a list of them, or those that match a pattern."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.abc import Stream
from penstock.errors import BrokerUnavailableError, PenstockError, StreamError, UnknownTopicError
from penstock.model import Record
from penstock.streams.reading import SLICE_S, Reader, Start
from penstock.streams.topic_patterns import REFRESH_S, TopicPattern, described

logger = logging.getLogger(__name__)

_IN_A_ROW: Final = 100
"""How many records of one topic are returned before the next topic has its turn."""
_LONGEST_TURN_S: Final = 0.02
"""How long to wait for one topic before looking at the next."""

OpenReader = Callable[[str, Start], Reader]


class MergedReader(Reader):
    """One reader for each topic, read in turns so that none starves. Ends when all have ended.

    With a pattern and `follow`, it looks for new topics every `REFRESH_S` seconds, reads them from their start, and
    drops deleted topics.
    """

    def __init__(
        self,
        stream: Stream,
        choice: Sequence[str] | TopicPattern,
        open_reader: OpenReader,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
    ) -> None:
        """`open_reader` opens the reader of one topic, without a limit and, with `follow`, without a timeout."""
        self._stream = stream
        self._choice = choice
        self._open_reader = open_reader
        self._follow = follow
        self._left = limit
        self._timeout_s = timeout_s
        self._readers: collections.deque[tuple[str, Reader]] = collections.deque()
        """In the order of their turns."""
        self._given = 0
        """How many records the first of them has returned in this turn."""
        self._closed = threading.Event()
        self._heard_s = self._refreshed_s = time.monotonic()
        try:
            for name in choice.find(stream) if isinstance(choice, TopicPattern) else choice:
                self._add(name, start)
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Record:
        while self._left != 0:
            if self._readers and self._given < _IN_A_ROW and self._readers[0][1].ready:
                self._given += 1
                if self._left is not None:
                    self._left -= 1
                return next(self._readers[0][1])
            if not self.ready and not self._look():
                break
            self._next_turn()
        self.close()
        raise StopIteration

    def _look(self, slice_s: float = SLICE_S) -> bool:
        if self._left == 0:
            return False
        self._refresh()
        until_s = time.monotonic() + slice_s
        wait_s = 0.0
        while True:  # ends with a record, at the end, or at the deadline
            for topic, reader in list(self._readers):
                if not self._look_at(topic, reader, wait_s):
                    self._readers.remove((topic, reader))
                elif wait_s and reader.ready:
                    break
            now_s = time.monotonic()
            if self.ready:
                self._heard_s = now_s
                return True
            if self._is_over(now_s):
                return False
            if now_s >= until_s:
                return True
            if not self._readers:
                self._closed.wait(until_s - now_s)
            wait_s = min(_LONGEST_TURN_S, until_s - now_s)

    def _is_over(self, now_s: float) -> bool:
        if not self._follow:
            return not self._readers
        if self._closed.is_set() or (self._timeout_s is not None and now_s - self._heard_s >= self._timeout_s):
            return True
        return not self._readers and not isinstance(self._choice, TopicPattern)

    def _look_at(self, topic: str, reader: Reader, wait_s: float) -> bool:
        """Whether there may be more records of a topic."""
        if reader.ready:
            return True
        try:
            return reader._look(wait_s)
        except PenstockError as error:
            if not self._was_deleted(topic):
                raise
            logger.info("stopped reading topic %r, which was deleted: %s", topic, error)
            reader.close()
            return False

    def _was_deleted(self, topic: str) -> bool:
        """Whether a topic is gone. Only a followed pattern drops it: any other reader must not miss records."""
        if not self._follow or not isinstance(self._choice, TopicPattern):
            return False
        try:
            return topic not in self._stream.topics()
        except PenstockError as error:
            logger.info("topics could not be listed: %s", error)
            return False

    def _next_turn(self) -> None:
        self._given = 0
        if self._readers:
            self._readers.rotate(-1)
            topic, reader = self._readers[0]
            if not self._look_at(topic, reader, 0.0):
                self._readers.popleft()
        self._refresh()

    def _refresh(self) -> None:
        """Add the topics that match now, and drop deleted ones."""
        now_s = time.monotonic()
        if now_s - self._refreshed_s < REFRESH_S or not self._follow or self._closed.is_set():
            return
        if not isinstance(self._choice, TopicPattern):
            return
        self._refreshed_s = now_s
        try:
            found = self._choice.find(self._stream)
        except (BrokerUnavailableError, StreamError) as error:
            logger.warning("%s could not be listed; retrying: %s", described(self._choice), error)
            return
        known = dict(self._readers)
        for topic in known.keys() - set(found):
            logger.info("stopped reading topic %r, which was deleted", topic)
            known[topic].close()  # it still returns the records that it has
        for topic in found:
            if topic not in known:
                logger.info("started reading topic %r, which matches %r", topic, str(self._choice))
                self._add(topic, "earliest")

    def _add(self, topic: str, start: Start) -> None:
        try:
            reader = self._open_reader(topic, start)
        except UnknownTopicError as error:
            if not isinstance(self._choice, TopicPattern):
                raise
            logger.info("topic %r was deleted before it was read: %s", topic, error)
            return
        self._readers.append((topic, reader))
        if self._closed.is_set():
            reader.close()

    @property
    def ready(self) -> int:
        count = sum(reader.ready for _, reader in list(self._readers))
        return count if self._left is None else min(self._left, count)

    def close(self) -> None:
        self._closed.set()
        for _, reader in list(self._readers):
            reader.close()
