"""Polling a consumer: the base of the feeds with and without a group."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError
from penstock.model import Batch
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.failures import is_missing, refused
from penstock.streams.kafka.reading.intake import Intake
from penstock.streams.kafka.settings import Configuration

SILENCE_S: Final = 10.0
"""How long without a message until the broker is asked whether the topic still exists."""


class TopicLivenessCheck:
    """Notices that a topic was deleted: librdkafka would wait for it for ever, without an error."""

    def __init__(self, topic: str, topics: TopicAdministration) -> None:
        self._topic = topic
        self._topics = topics
        self._since_s = time.monotonic()
        self._answer: Future[Any] | None = None

    def received(self) -> None:
        self._since_s = 0.0

    def received_nothing(self) -> None:
        """Ask, without waiting, after a long silence. Raises UnknownTopicError once the topic is known to be gone."""
        now_s = time.monotonic()
        if not self._since_s:
            self._since_s = now_s
        if self._answer is None:
            if now_s - self._since_s >= SILENCE_S:
                self._answer = self._topics.ask_for(self._topic)
        elif self._answer.done():
            answer, self._answer = self._answer, None
            self._since_s = now_s
            error = answer.exception()
            if isinstance(error, KafkaException) and is_missing(error):
                raise refused(f"topic {self._topic!r} can no longer be read", error) from error


def new_consumer(configuration: Configuration) -> Consumer:
    """A consumer of librdkafka. ConfigError if it rejects the configuration."""
    try:
        return Consumer(configuration)
    except KafkaException as error:
        raise ConfigError(f"librdkafka rejected the configuration: {error}") from error


_SLICE_S: Final = 0.02
"""How long a waiting feed stays inside librdkafka, which only a message can interrupt: the longest that `wake` takes.

Fifty slices a second cost about a thousandth of a core."""
_MOST_AT_ONCE: Final = 4_000
"""More messages at once would leave the processor's caches before they are used."""


class PolledFeed:
    """A consumer and the intake of its messages. One thread polls; any thread may `wake` and `close`."""

    def __init__(self, configuration: Configuration, topic: str, topics: TopicAdministration) -> None:
        self._topic = topic
        self._topics = topics
        self._intake = Intake(topic)
        self._liveness = TopicLivenessCheck(topic, topics)
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._closing = False
        self._consumer: Consumer | None = new_consumer(configuration)

    def pause(self, partition: int) -> None:
        """Return no records of this partition until `resume`. No effect on one that is not read."""
        self._intake.pause(partition)

    def resume(self, partition: int) -> None:
        with self._lock:
            if self._intake.resume(partition):
                self._open_consumer().resume([TopicPartition(self._topic, partition)])

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        """The next batches, as in `penstock.abc.Feed.poll`. Records that came before an error are returned before it
        is raised."""
        if limit < 1:
            raise ConfigError(f"limit={limit} must be >= 1")
        with self._lock:
            try:
                return self._poll(limit, time.monotonic() + wait_s)
            finally:
                self._woken.clear()

    def wake(self) -> None:
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
                self._report_gone()
            intake.raise_error()
            batches = intake.release(limit)
            if not batches:
                messages = self._fetch(consumer, min(limit, _MOST_AT_ONCE), deadline_s)
                if messages:
                    batches = intake.take(messages)
                    self._stop_overfull(consumer)
                    self._liveness.received()
                else:
                    self._liveness.received_nothing()
                    if time.monotonic() >= deadline_s:
                        return []
            if batches or (self._woken.is_set() and not self._closing):
                return batches

    def _fetch(self, consumer: Consumer, limit: int, deadline_s: float) -> list[Message]:
        """The messages that came; if there are none, wait for a slice of time."""
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
        """Wait while all partitions are paused."""
        self._woken.wait(max(0.0, slice_s))
        return []

    def _stop_overfull(self, consumer: Consumer) -> None:
        overfull = self._intake.overfull()
        if overfull:
            consumer.pause([TopicPartition(self._topic, partition) for partition in overfull])

    def _report_gone(self) -> None:
        """Stop reading a partition whose next offset does not exist, and raise OffsetOutOfRangeError."""
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
        """Continue at another offset."""
        raise NotImplementedError

    def _drop(self, partition: int) -> None:
        """Stop reading a partition."""
        raise NotImplementedError

    def _open_consumer(self) -> Consumer:
        if self._consumer is None or self._closing:
            raise ConnectionClosedError(f"the feed of topic {self._topic!r} is closed")
        return self._consumer

    @contextlib.contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise refused(what, error) from error
