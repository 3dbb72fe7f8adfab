"""Reading records as a member of a group, with explicit commits."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import BrokerUnavailableError, StreamError
from penstock.model import Record
from penstock.streams.kafka.failures import is_passing
from penstock.streams.kafka.groups.leaving import GroupExit
from penstock.streams.kafka.reading.batch import record_from
from penstock.streams.kafka.reading.polling import new_consumer
from penstock.streams.kafka.settings import group_configuration
from penstock.streams.options import Options

_SLICE_S: Final = 0.2
_AT_ONCE: Final = 1_000
_SILENCE_S: Final = 60.0
"""How long a member waits for its partitions, or for a silent broker before the end."""


class GroupReader(Iterator[Record]):
    """`abc.CommittingReader` of Kafka. After a crash, records are read again rather than lost.

    Without `follow`, it ends when all partitions of this member are at their end.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        group: str,
        topic: str,
        *,
        reset: Literal["earliest", "latest"],
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
    ) -> None:
        self._topic = topic
        self._group = group
        self._follow = follow
        self._left = limit
        self._timeout_s = timeout_s
        self._share: set[int] | None = None
        self._at_end: set[int] = set()
        self._ready: collections.deque[Record] = collections.deque()
        self._in_hand: Record | None = None
        self._done: dict[int, int] = {}
        self._heard_s = time.monotonic()
        configuration = group_configuration(bootstrap, options, group, reset)
        self._consumer = new_consumer(configuration)
        is_cooperative = "cooperative" in str(configuration.get("partition.assignment.strategy", ""))
        self._exit = GroupExit(self._consumer, topic, is_cooperative=is_cooperative)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    @property
    def ready(self) -> int:
        return len(self._ready)

    def __next__(self) -> Record:
        self._finish_in_hand()
        if self._left == 0:
            raise StopIteration
        while not self._ready:
            if self._has_ended():
                raise StopIteration
            self._fetch()
        if self._left is not None:
            self._left -= 1
        self._in_hand = self._ready.popleft()
        return self._in_hand

    def commit(self) -> None:
        done, self._done = self._done, {}
        if done:
            self._commit(done)

    def close(self) -> None:
        self._done = {}
        if not self._exit.is_closing:
            self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def _finish_in_hand(self) -> None:
        if self._in_hand is not None:
            self._done[self._in_hand.partition] = self._in_hand.offset + 1
            self._in_hand = None

    def _has_ended(self) -> bool:
        silent_s = time.monotonic() - self._heard_s
        if self._follow:
            return self._timeout_s is not None and silent_s >= self._timeout_s
        if self._share is not None and self._share <= self._at_end:
            return True
        limit_s = _SILENCE_S if self._timeout_s is None else self._timeout_s
        if silent_s >= limit_s:
            raise BrokerUnavailableError(
                f"group {self._group!r} did not reach the end of topic {self._topic!r}: nothing came for "
                f"{limit_s:g} s; check that the broker runs, and look at the group with: penstock groups describe"
            )
        return False

    def _fetch(self) -> None:
        first = self._consumer.poll(_SLICE_S)
        if first is None:
            return
        self._heard_s = time.monotonic()
        self._take(first)
        for message in self._consumer.consume(_AT_ONCE, timeout=0):
            self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            record = record_from(message)
            self._at_end.discard(record.partition)
            self._ready.append(record)
        elif error.code() == KafkaError._PARTITION_EOF:
            partition = message.partition()
            assert partition is not None
            self._at_end.add(partition)
        elif is_passing(KafkaException(error)):
            return  # librdkafka retries, and `_has_ended` limits the wait
        else:
            raise StreamError(f"group {self._group!r} cannot read topic {self._topic!r}: {error.str()}")

    def _assigned(self, _: Consumer, places: list[TopicPartition]) -> None:
        if self._exit.is_closing:
            self._exit.answer(is_assignment=True)
            return
        self._heard_s = time.monotonic()
        self._share = (self._share or set()) | {place.partition for place in places}

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        """Commit what is done, because other members get these partitions."""
        if self._exit.is_closing:
            self._exit.answer(is_assignment=False)
            return
        gone = {place.partition for place in places}
        done = {partition: offset for partition, offset in self._done.items() if partition in gone}
        if done:
            self._commit(done)
        self._forget(gone)

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        """Commit nothing: other members already have these partitions, and it would undo their progress."""
        if self._exit.is_closing:
            self._exit.answer(is_assignment=False)
            return
        self._forget({place.partition for place in places})

    def _forget(self, gone: set[int]) -> None:
        self._share = (self._share or set()) - gone
        self._at_end -= gone
        self._done = {partition: offset for partition, offset in self._done.items() if partition not in gone}
        self._ready = collections.deque(record for record in self._ready if record.partition not in gone)
        if self._in_hand is not None and self._in_hand.partition in gone:
            self._in_hand = None

    def _commit(self, done: dict[int, int]) -> None:
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in done.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise StreamError(
                f"group {self._group!r} could not commit its progress in topic {self._topic!r}: {error.args[0].str()}; "
                "what was read since the last commit will be read again"
            ) from error
