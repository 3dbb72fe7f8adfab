"""Reading again, without a group: from a position to the end as it was, or on and on."""

from __future__ import annotations

import collections
import datetime
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    OffsetOutOfRangeError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import Position, PositionKind, Record
from penstock.streams.kafka.header_names import UNREADABLE, mend
from penstock.streams.kafka.settings import reader_configuration
from penstock.streams.kafka.topics import Offsets, TopicAdministration
from penstock.streams.options import Options

Start = str | datetime.datetime | Position | Mapping[int, int]
"""Where to begin: "earliest", "latest", a time, a Position, or an offset for each partition."""

_SLICE_S: Final = 0.2
"""How long a reader stays inside librdkafka: within that time Ctrl-C and `close` are noticed."""
_AT_ONCE: Final = 1_000
_SILENCE_S: Final = 30.0
"""How long a reader that has not come to the end waits for a broker that says nothing."""


class Reader(Iterator[Record]):
    """An iterator over records. One thread reads; any may `close` it."""

    def __init__(
        self,
        topics: TopicAdministration,
        bootstrap: str,
        options: Options,
        topic: str,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ConfigError(f"the limit {limit} is negative")
        self._topics = topics
        self._topic = topic
        self._follow = follow
        self._left = limit
        self._timeout_s = timeout_s
        self._position = position_of(start)
        self._lock = threading.Lock()
        self._ready: collections.deque[Record] = collections.deque()
        self._error: Exception | None = None
        self._heard_s = time.monotonic()
        chosen = _chosen_partitions(topic, topics.partitions_of(topic), start, partitions)
        starts, self._ends = self._range(chosen, start)
        self._begun: set[int] = set()
        waiting = {
            partition: offset for partition, offset in starts.items() if follow or offset < self._ends[partition]
        }
        self._unfinished = set(waiting)
        self._ended = not waiting or limit == 0
        self._closing = False
        self._consumer: Consumer | None = None
        if not self._ended:
            self._consumer = _consumer(bootstrap, options, limit, topic, waiting)

    def __next__(self) -> Record:
        if self._left == 0:
            self.close()
            raise StopIteration
        while not self._ready:
            if self._closing:
                time.sleep(0.001)  # let the thread that wants to close have the lock
            self._fetch()
        if self._left is not None:
            self._left -= 1
        return self._ready.popleft()

    @property
    def ready(self) -> int:
        """How many records can be had without waiting."""
        return len(self._ready)

    def close(self) -> None:
        """Stop reading. A thread that waits for the next record stops waiting.

        A reader that follows then ends. One that has not come to its end raises when it is asked for more, so that
        nobody takes a part for the whole.
        """
        self._closing = True
        with self._lock:
            self._closing = False
            if not self._follow and not self._ended and self._left != 0 and self._error is None:
                self._error = ConnectionClosedError(f"reading topic {self._topic!r} was stopped before its end")
            self._ended = True
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _range(self, partitions: tuple[int, ...], start: Start) -> tuple[Offsets, Offsets]:
        """Where to begin in each partition, and what is its end now. An offset outside of the log is refused here."""
        ends = self._topics.latest(self._topic, partitions)
        if isinstance(start, Mapping):
            starts = {partition: start[partition] for partition in partitions}
        else:
            starts = self._topics.locate(self._topic, self._position, partitions)
        if self._position.kind is PositionKind.POINTER:
            first = self._topics.earliest(self._topic, partitions)
            for partition, offset in starts.items():
                if not first[partition] <= offset <= ends[partition]:
                    raise self._out_of_range(partition, offset, first[partition], ends[partition])
        return starts, ends

    def _fetch(self) -> None:
        """Wait for more records, for a slice of time. Raises StopIteration at the end."""
        with self._lock:
            if self._error is not None:
                self._let_go()
                raise self._error
            if self._ended or self._consumer is None:
                self._let_go()
                raise StopIteration
            first = self._consumer.poll(self._slice_s())
            if first is None:
                self._wait_no_longer()
                return
            self._heard_s = time.monotonic()
            self._take(first)
            for message in self._consumer.consume(_AT_ONCE, timeout=0):
                self._take(message)
            if not self._unfinished:
                self._ended = True

    def _slice_s(self) -> float:
        if self._timeout_s is None:
            return _SLICE_S
        return max(0.0, min(_SLICE_S, self._heard_s + self._timeout_s - time.monotonic()))

    def _wait_no_longer(self) -> None:
        """Nothing has come. With `follow` that may be the end; without, there should have been something."""
        silent_s = time.monotonic() - self._heard_s
        if self._follow:
            if self._timeout_s is not None and silent_s >= self._timeout_s:
                self._ended = True
            return
        limit_s = _SILENCE_S if self._timeout_s is None else self._timeout_s
        if silent_s >= limit_s:
            self._fail(
                BrokerUnavailableError(
                    f"topic {self._topic!r} was not read to its end: the broker said nothing for {limit_s:g} s; "
                    "see that it runs and can be reached"
                )
            )

    def _take(self, message: Message) -> None:
        error = message.error()
        partition = message.partition()
        if error is not None:
            self._hear_of(error, partition if partition is not None else -1, message.offset())
            return
        record = record_from(message)
        self._begun.add(record.partition)
        if self._follow:
            self._ready.append(record)
            return
        end = self._ends[record.partition]
        if record.offset < end and record.partition in self._unfinished:
            self._ready.append(record)
        if record.offset >= end - 1:
            self._finish(record.partition)

    def _hear_of(self, error: KafkaError, partition: int, offset: int | None) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # The end of a partition as it is now. It lies behind the end as it was, even where the last records before
            # it are a transaction's markers, which no reader sees.
            if not self._follow:
                self._finish(partition)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._relocate(partition, -1 if offset is None else offset)
        elif error.retriable() or code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
            return  # librdkafka tries again; for how long we wait, `_wait_no_longer` decides
        else:
            self._fail(StreamError(f"topic {self._topic!r} cannot be read: {error.str()}"))

    def _relocate(self, partition: int, offset: int) -> None:
        """The offset is gone. Who wanted the earliest record, and has seen none, gets the one that is earliest now."""
        first = self._topics.earliest(self._topic, [partition])[partition]
        end = self._topics.latest(self._topic, [partition])[partition]
        if self._position.kind is PositionKind.EARLIEST and partition not in self._begun:
            if not self._follow and first >= self._ends[partition]:
                self._finish(partition)
                return
            assert self._consumer is not None
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, first)])
            return
        self._fail(self._out_of_range(partition, offset, first, end))

    def _finish(self, partition: int) -> None:
        if partition in self._unfinished:
            self._unfinished.discard(partition)
            if self._consumer is not None and self._unfinished:
                self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def _fail(self, error: Exception) -> None:
        """The next record that is asked for, once those that have come are given out, is this error."""
        self._error = self._error or error

    def _let_go(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()

    def _out_of_range(self, partition: int, offset: int, first: int, end: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(f"{self._topic}-{partition}", offset, first, end)


def position_of(start: Start) -> Position:
    """The position that `start` means; for offsets of partitions, that it is pointers."""
    if isinstance(start, Position):
        return start
    if isinstance(start, datetime.datetime):
        return Position.at_time(start)
    if start == PositionKind.EARLIEST:
        return Position.EARLIEST
    if start == PositionKind.LATEST:
        return Position.LATEST
    if isinstance(start, Mapping):
        return Position(PositionKind.POINTER)
    raise ConfigError(
        f'{start!r} is no start: use "earliest", "latest", a datetime, Position.at_time(milliseconds), '
        "Position.at_pointer(offset), or an offset for each partition, {0: 42}"
    )


def record_from(message: Message) -> Record:
    """librdkafka's message as a record. For names of headers that are no UTF-8, see `penstock.model.header_name`."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    try:
        headers = message.headers()
        _, timestamp_ms = message.timestamp()
        return Record(
            topic,
            partition,
            offset,
            message.key(),
            message.value(),
            tuple(headers) if headers else (),  # type: ignore[arg-type]  # librdkafka gives the values as bytes
            timestamp_ms if timestamp_ms >= 0 else None,
        )
    except UNREADABLE as error:
        mend(message, error)
    return record_from(message)


def _chosen_partitions(
    topic: str, there: tuple[int, ...], start: Start, asked: Iterable[int] | None
) -> tuple[int, ...]:
    if asked is None:
        chosen = tuple(sorted(start)) if isinstance(start, Mapping) else there
    else:
        chosen = tuple(sorted(set(asked)))
    missing = set(chosen) - set(there)
    if missing:
        raise UnknownTopicError(
            f"topic {topic!r} has no partition {min(missing)}: it has {len(there)}, numbered from 0 to {len(there) - 1}"
        )
    if isinstance(start, Mapping) and not set(chosen) <= set(start):
        raise ConfigError(f"start has no offset for partition {min(set(chosen) - set(start))} of topic {topic!r}")
    return chosen


def _consumer(bootstrap: str, options: Options, limit: int | None, topic: str, starts: Offsets) -> Consumer:
    try:
        consumer = Consumer(reader_configuration(bootstrap, options, limit))
    except KafkaException as error:
        raise ConfigError(f"librdkafka does not take its settings: {error}") from error
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
    return consumer
