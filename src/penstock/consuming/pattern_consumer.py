"""One handler on all topics that match a pattern: a consumer for each, which come and go with their topics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.abc import HasAdmin, Stream
from penstock.consuming.defaults import Checkpoints
from penstock.consuming.handlers import Handler
from penstock.consuming.loop_consumer import Background
from penstock.errors import BrokerUnavailableError, PenstockError, StoreUnavailableError, StreamError, UnknownTopicError
from penstock.streams.capability import capability
from penstock.streams.topic_patterns import REFRESH_S, TopicPattern, described

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_RETRIABLE: Final = (BrokerUnavailableError, StreamError, StoreUnavailableError)
_SETTLE_S: Final = 30.0
"""How long other members may take to notice that a topic was deleted, and to save their checkpoints a last time."""

Kind = TypeVar("Kind", bound=Background)


class PatternConsumer(Background, Generic[Kind]):
    """Runs one consumer for each topic that matches, and looks every `REFRESH_S` seconds which topics there are.

    Each topic has its own consumer of the same group, with all that belongs to it: checkpoints, workers, limits, dead
    letters. A topic that appears later gets one then. The consumer of a deleted topic stops, and its errors do not
    count; any other error stops all.
    """

    def __init__(
        self,
        stream: Stream,
        pattern: TopicPattern,
        handler: Handler,
        make: Callable[[str, Checkpoints], Kind],
        load: Callable[[str], Checkpoints],
        *,
        is_excluded: Callable[[str], bool],
        ends: bool,
        on_left: Callable[[str], object] = lambda topic: None,
    ) -> None:
        """`make` makes the consumer of one topic, and is told the checkpoints of a deleted topic of that name, which do
        not count; `load` loads the checkpoints of a topic. With `ends`, only the topics that match at the start are
        consumed, each to its end. `on_left` is called with a deleted topic once its consumer has stopped."""
        super().__init__(handler.name)
        self.handler = handler
        self._stream = stream
        self.pattern = pattern
        self._make = make
        self._is_excluded = is_excluded
        self._ends = ends
        self._load = load
        self._on_left = on_left
        self._ids: dict[str, str | None] = {}
        """Ids of the topics that are or were consumed, if the stream has ids."""
        self._deleted: dict[str, tuple[float, Checkpoints]] = {}
        """Topics that are gone: until when their checkpoints may still change, and what they were last."""
        self._stopping = threading.Event()
        self._refresh_s = 0.0
        self._was_listed = False
        self._consumers: dict[str, Kind] = {}
        """By topic. Replaced as a whole when it changes, so that any thread may read it."""
        self.problem = "its topics have not been listed yet"
        """Why new topics would not be noticed at the moment; "" if they would."""

    @property
    def consumers(self) -> list[Kind]:
        """The consumers of the topics that match now, or that matched when the run ended."""
        return list(self._consumers.values())

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if time.monotonic() >= self._refresh_s and not (self._ends and self._was_listed):
                    self._refresh()
                is_running = self._check_consumers()
                if self._ends and self._was_listed and not is_running:
                    return
                self._stopping.wait(_LOOK_S)
        except BaseException:
            self._stop_all()
            raise
        failure = self._stop_all()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        self._stopping.set()

    def abandon(self) -> None:
        """Nothing was opened for a pattern that will not run."""

    def _refresh(self) -> None:
        """Start the consumers of new topics, and stop those of deleted ones."""
        self._refresh_s = time.monotonic() + REFRESH_S
        try:
            there = sorted(self._stream.topics())
            for topic, (until_s, _) in list(self._deleted.items()):
                if topic not in there and time.monotonic() < until_s:  # other members may have been slower
                    self._deleted[topic] = (until_s, self._load(topic))
            for topic in there:
                if topic not in self._consumers and self.pattern.matches(topic) and not self._is_excluded(topic):
                    self._begin(topic)
        except _RETRIABLE as error:
            if not self.problem or not self._was_listed:
                logger.warning("%s cannot be looked up; trying again: %s", described(self.pattern), error)
            self.problem = f"{described(self.pattern)} cannot be looked up: {error}"
            return
        for topic in self._consumers.keys() - set(there):
            self._consumers[topic].stop()
        if not self._consumers and not self._was_listed:
            logger.warning("no topic matches %r yet", str(self.pattern))
        self.problem = ""
        self._was_listed = True

    def _begin(self, topic: str) -> None:
        """Start the consumer of a topic."""
        admin = capability(self._stream, HasAdmin)
        try:
            id_now = None if admin is None else admin.admin().describe(topic).id
        except UnknownTopicError as error:
            logger.info("topic %r was deleted before it was consumed: %s", topic, error)
            return
        _, stale = self._deleted.get(topic, (0.0, {}))
        if id_now is not None and id_now == self._ids.get(topic):
            stale = {}  # it was only missing in an answer of the broker
        consumer = self._make(topic, stale)
        self._ids[topic] = id_now
        self._deleted.pop(topic, None)
        logger.info("topic %r is consumed from now on: it matches %r", topic, str(self.pattern))
        self._consumers = {**self._consumers, topic: consumer}
        consumer.start()

    def _check_consumers(self) -> bool:
        """Whether any of them still runs. Raises the error of one whose topic was not deleted."""
        is_running = False
        for topic, consumer in list(self._consumers.items()):
            try:
                if not consumer.wait(0.0):
                    is_running = True
                    continue
                if self._ends:
                    continue  # it has reached its end
            except BaseException as error:
                if not isinstance(error, PenstockError) or self._exists(topic):
                    raise
                logger.info("the consumer of topic %r stopped: %s", topic, error)
            try:
                self._deleted[topic] = (time.monotonic() + _SETTLE_S, self._load(topic))
            except _RETRIABLE as error:
                self.problem = f"the checkpoints of topic {topic!r}, which was deleted, cannot be loaded: {error}"
                continue
            logger.info("topic %r is no longer consumed: it was deleted", topic)
            self._consumers = {name: each for name, each in self._consumers.items() if name != topic}
            self._on_left(topic)
        return is_running

    def _exists(self, topic: str) -> bool:
        try:
            return topic in self._stream.topics()
        except PenstockError as error:
            logger.info("topics could not be listed: %s", error)
            return True

    def _stop_all(self) -> BaseException | None:
        """Stop all consumers and wait until they have. Returns the first error."""
        failure: BaseException | None = None
        for consumer in self.consumers:
            consumer.stop()
        for topic, consumer in self._consumers.items():
            try:
                consumer.wait()
            except BaseException as error:
                if isinstance(error, PenstockError) and not self._exists(topic):
                    logger.info("the consumer of topic %r stopped, which was deleted: %s", topic, error)
                    continue
                logger.error("the consumer of topic %r failed: %s", topic, error)
                failure = failure or error
        return failure
