"""Polling: what the feed of a stream and that of a group's member have in common."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError
from penstock.model import Batch
from penstock.streams.kafka.doubts import Doubts
from penstock.streams.kafka.failures import refused
from penstock.streams.kafka.intake import Intake
from penstock.streams.kafka.settings import Configuration
from penstock.streams.kafka.topics import TopicAdministration

_SLICE_S: Final = 0.02
"""How long a feed that waits stays inside librdkafka, which nothing but a message can end: the most that `wake` takes.

Fifty slices a second cost about a thousandth of a core."""
_MOST_AT_ONCE: Final = 4_000
"""More messages in one go leave the processor's caches before anybody looks at them."""


class PolledFeed:
    """A consumer, and the intake that its messages go through. One thread polls; any may `wake` and `close`."""

    def __init__(self, configuration: Configuration, topic: str, topics: TopicAdministration) -> None:
        self._topic = topic
        self._topics = topics
        self._intake = Intake(topic)
        self._doubts = Doubts(topic, topics)
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._closing = False
        try:
            self._consumer: Consumer | None = Consumer(configuration)
        except KafkaException as error:
            raise ConfigError(f"librdkafka does not take its settings: {error}") from error

    def pause(self, partition: int) -> None:
        """Give out nothing of this partition until `resume`. Without effect on one that is not read."""
        self._intake.pause(partition)

    def resume(self, partition: int) -> None:
        with self._lock:
            if self._intake.resume(partition):
                self._open_consumer().resume([TopicPartition(self._topic, partition)])

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        """See `penstock.abc.Feed.poll`. What has come before an error is given out before it is raised."""
        if limit < 1:
            raise ConfigError(f"the limit {limit} is less than 1")
        with self._lock:
            try:
                return self._poll(limit, time.monotonic() + wait_s)
            finally:
                self._woken.clear()

    def wake(self) -> None:
        """End a `poll` that waits, within a few milliseconds; if none waits, the next one does not."""
        self._woken.set()

    def close(self) -> None:
        self._closing = True
        self._woken.set()
        with self._lock:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                self._let_go(consumer)

    def _let_go(self, consumer: Consumer) -> None:
        consumer.close()

    def _poll(self, limit: int, deadline_s: float) -> list[Batch]:
        intake = self._intake
        while True:
            consumer = self._open_consumer()
            if intake.gone:
                self._tell_what_is_gone()
            intake.raise_error()
            batches = intake.release(limit)
            if not batches:
                messages = self._fetch(consumer, min(limit, _MOST_AT_ONCE), deadline_s)
                if messages:
                    batches = intake.take(messages)
                    self._stop_overfull(consumer)
                    self._doubts.dispel()
                else:
                    self._doubts.consider()
                    if time.monotonic() >= deadline_s:
                        return []
            if batches or (self._woken.is_set() and not self._closing):
                return batches

    def _fetch(self, consumer: Consumer, limit: int, deadline_s: float) -> list[Message]:
        """What has come; if that is nothing, wait for it for a slice of time."""
        if self._intake.is_silent:
            return self._rest(consumer, min(_SLICE_S, deadline_s - time.monotonic()))
        messages = consumer.consume(limit, 0)
        if messages:
            return messages
        slice_s = min(_SLICE_S, deadline_s - time.monotonic())
        first = consumer.poll(slice_s) if slice_s > 0 and not self._woken.is_set() else None
        if first is None:
            return []
        return [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]

    def _rest(self, consumer: Consumer, slice_s: float) -> list[Message]:
        """Wait while nothing is wanted of what may come."""
        self._woken.wait(max(0.0, slice_s))
        return []

    def _stop_overfull(self, consumer: Consumer) -> None:
        overfull = self._intake.overfull()
        if overfull:
            consumer.pause([TopicPartition(self._topic, partition) for partition in overfull])

    def _tell_what_is_gone(self) -> None:
        """Raise OffsetOutOfRangeError for a partition whose next records are not in the log, and stop reading it."""
        partition = min(self._intake.gone)
        offset = self._intake.readings[partition].next
        first = self._topics.earliest(self._topic, [partition])[partition]
        end = self._topics.latest(self._topic, [partition])[partition]
        if first <= offset <= end:
            self._move(partition, offset)
            return
        self._drop(partition)
        raise OffsetOutOfRangeError(f"{self._topic}-{partition}", offset, first, end)

    def _move(self, partition: int, start: int) -> None:
        """Go on elsewhere in a partition."""
        raise NotImplementedError

    def _drop(self, partition: int) -> None:
        """Give out nothing of a partition any more."""
        raise NotImplementedError

    def _open_consumer(self) -> Consumer:
        if self._consumer is None or self._closing:
            raise ConnectionClosedError(f"the feed of topic {self._topic!r} is closed")
        return self._consumer

    @contextlib.contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        """What librdkafka refuses inside, in our words."""
        try:
            yield
        except KafkaException as error:
            raise refused(what, error) from error
