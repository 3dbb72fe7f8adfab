"""The connection that users hold: it sends, reads and administers topics of any stream."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self, TypeVar, Unpack, overload

from penstock.abc import (
    Admin,
    Clock,
    CommittingReader,
    Feature,
    Features,
    GroupAdmin,
    HasAdmin,
    HasBootstrap,
    HasGroupReader,
    HasReader,
    HasSender,
    NamesPointers,
    Reachable,
    RecordTimes,
    Sender,
    Stream,
    Survey,
    TopicStream,
)
from penstock.errors import ConfigError, ConnectionClosedError, DeliveryError, InvalidTopicError, PenstockError
from penstock.model import NewRecord, Pointer, Receipt, RecordMetadata, check_topic_name
from penstock.model.observing import OBSERVED, send_traced
from penstock.model.times import check_seconds
from penstock.serde import SendOptions, Topic, new_record
from penstock.serde.plain import NewHeaders
from penstock.streams.declared import DeclaredTopics, provide_topic
from penstock.streams.forks import FORKS
from penstock.streams.merged_reader import MergedReader
from penstock.streams.plain_admin import NoGroups, PlainAdmin, PlainRecordTimes, PlainSurvey
from penstock.streams.reading import Closeable, Reader, Start, StreamReader, check_read
from penstock.streams.sending import AppendSender
from penstock.streams.topic_patterns import TopicPattern, topics_of
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_S: Final = 120.0
"""How long `close` waits for acknowledgements by default, unless the stream has its own limit."""
_EXIT_FLUSH_S: Final = 10.0
"""How long a program that did not close its connection waits at exit for what it has sent."""


class Spool(Sender, Protocol):
    """A durable sender, which creates declared topics when it delivers."""

    def declare(self, topic: Topic[Any]) -> None:
        """Create this topic, with its number of partitions, before delivering a record to it."""


@dataclass(slots=True)
class _Parts:
    """What a connection must close. An object of its own, so that a finalizer can close it without the connection."""

    backend: Stream
    sender: Sender | None = None
    is_own_sender: bool = False
    """Whether the sender is not the backend's own, which the backend closes."""
    readers: weakref.WeakSet[Closeable] = field(default_factory=weakref.WeakSet)

    def close(self, timeout_s: float | None) -> None:
        with contextlib.ExitStack() as stack:
            if isinstance(self.backend, HasSender):
                stack.callback(self.backend.close, timeout_s)
            else:
                stack.callback(self.backend.close)
            for reader in list(self.readers):
                stack.callback(reader.close)
            if self.sender is not None and self.is_own_sender:
                stack.callback(self.sender.close, CLOSE_S if timeout_s is None else timeout_s)


class Connection:
    """A connection to a stream, made by `connect`. Use it in a `with` or `async with` block, or `close` it.

    Thread-safe. A forked process must connect by itself.
    """

    def __init__(self, backend: Stream, *, clock: Clock | None = None) -> None:
        """The connection closes the backend. `clock` is the clock for `delay_s`."""
        self.url = without_password(backend.url)
        self.backend = backend
        """The stream itself, which may have more of the protocols of `penstock.abc`."""
        self._parts = _Parts(backend)
        self._spool: Spool | None = None
        self._clock = clock
        self._declared = DeclaredTopics()
        self._reach = backend if isinstance(backend, Reachable) else None
        self._pid = os.getpid()
        self._forks = FORKS.count
        self._lock = threading.Lock()
        self._closed = False
        self._forgotten: weakref.finalize[..., Connection] | None = None
        if Feature.DURABLE in backend.features:
            self._forgotten = weakref.finalize(self, _let_go, self._parts, self.url, self._pid)

    @overload
    def send(self, topic: Topic[T], value: T | None, key: object = None, **options: Unpack[SendOptions]) -> Receipt: ...

    @overload
    def send(self, topic: str, value: object, key: object = None, **options: Unpack[SendOptions]) -> Receipt: ...

    def send(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        *,
        headers: NewHeaders = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
        delay_s: float | None = None,
    ) -> Receipt:
        """Send a record without waiting. It is stored once its receipt is acknowledged.

        A Topic encodes its values and keys. With a topic name, bytes and text are sent as they are, anything else as
        JSON. None is a record without a value. Records with the same key go to the same partition, in the order in
        which they were sent. `penstock.typing.SendOptions` explains the options. A missing topic is created if the
        broker allows it; a Topic with `partitions` is created with that number before this returns.

        Raises DeliveryError if the record cannot be accepted: it is too large, its partition does not exist, its topic
        cannot be created, or the buffer stayed full for `delivery_timeout_s`.
        """
        now_ms = None if delay_s is None or self._clock is None else self._clock.wall_ms()
        record = new_record(topic, value, key, headers, timestamp, partition, delay_s, now_ms)
        if isinstance(topic, Topic) and topic.partitions is not None:
            self._provide(topic)
        if OBSERVED.tracer is not None and self._spool is None:  # a spool calls the tracer itself
            return send_traced(OBSERVED.tracer, record, self.send_record)
        return self.sender.send(record)

    def send_record(self, record: NewRecord) -> Receipt:
        """Send a record that is already encoded."""
        return self.sender.send(record)

    @overload
    async def send_async(
        self, topic: Topic[T], value: T | None, key: object = None, **options: Unpack[SendOptions]
    ) -> RecordMetadata: ...

    @overload
    async def send_async(
        self, topic: str, value: object, key: object = None, **options: Unpack[SendOptions]
    ) -> RecordMetadata: ...

    async def send_async(
        self, topic: str | Topic[Any], value: object, key: object = None, **options: Unpack[SendOptions]
    ) -> RecordMetadata:
        """Send a record, wait for the acknowledgement without blocking the event loop, and return where it is stored.

        Cancelling the wait does not take the record back. Raises what `send` and `Receipt.result` raise.
        """
        now_ms = None if self._clock is None else self._clock.wall_ms()
        record = new_record(topic, value, key, **options, now_ms=now_ms)
        if isinstance(topic, Topic) and topic.partitions is not None:
            await asyncio.to_thread(self._provide, topic)
        sender = self.sender
        settled = None
        if OBSERVED.tracer is not None and self._spool is None:
            record, settled = OBSERVED.tracer.sending(record)
        try:
            receipt = await sender.send_async(record)
        except BaseException as error:
            if settled is not None:
                settled(error)
            raise
        if settled is not None:
            receipt.add_done_callback(settled)
        return await receipt

    def _provide(self, topic: Topic[Any]) -> None:
        """Create a topic that is declared with a number of partitions. A spool does so when it delivers."""
        if self._spool is not None:
            self._spool.declare(topic)
            return
        self._declared.declare(topic)
        if topic.name not in self._declared.waiting:
            return
        try:
            self._declared.provide(topic.name, functools.partial(provide_topic, self))
        except PenstockError as error:
            raise DeliveryError(
                f"a record for topic {topic.name!r} was not sent: the topic is declared with "
                f"partitions={topic.partitions}, and could not be created: {error}",
                retriable=True,
            ) from error

    def send_through(self, spool: Spool) -> None:
        """Send through a spool, which is closed with the connection. Call it before the first `send`."""
        with self._lock:
            self.check_usable()
            assert self._parts.sender is None, "records have been sent already"
            self._parts.sender = self._spool = spool
            self._parts.is_own_sender = True

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged.

        Raises DeliveryError if a record sent since the last flush was not delivered and its receipt was not looked at,
        and TimeoutError if some are still in flight after `timeout_s` seconds.
        """
        self.check_usable()
        check_seconds(timeout_s, "timeout_s")
        if self._parts.sender is not None:
            self._parts.sender.flush(timeout_s)

    @property
    def unacknowledged(self) -> int:
        """The number of records that were sent and are neither acknowledged nor refused."""
        return self._parts.sender.unacknowledged if self._parts.sender is not None else 0

    def read(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start: Start = "earliest",
        *,
        follow: bool = False,
        limit: int | None = None,
        timeout_s: float | None = None,
        partitions: Iterable[int] | None = None,
    ) -> Reader:
        """Iterate over the records of a topic, without a group, in order within each partition.

        `start` is "earliest", "latest", a datetime with a time zone, a Position, or an offset for each partition
        (`{0: 42, 1: 7}`). The reader ends at the end of the topic at this moment, or after `limit` records. With
        `follow`, it continues with new records, and ends when none came for `timeout_s` seconds; without it, such a
        silence before the end is a BrokerUnavailableError. `partitions` restricts it to some partitions.

        A list of topics, or a compiled pattern that matches whole names, reads several topics in turns, to the end of
        all. With `follow`, topics that match the pattern later are read from their start, and deleted ones are dropped
        (see `penstock.TopicPattern` for what never matches). Offsets and `partitions` need one topic.

        Raises UnknownTopicError, and OffsetOutOfRangeError for an offset that was deleted or not written yet, also
        while reading, if records are deleted faster than they are read.
        """
        self.check_usable()
        chosen = _chosen(topic)
        check_read(chosen, start, limit, timeout_s, partitions)
        reader: Reader
        if not isinstance(chosen, TopicPattern) and len(chosen) == 1:
            reader = self._read_one(str(chosen[0]), start, follow, limit, timeout_s, partitions)
        else:
            topics = chosen if isinstance(chosen, TopicPattern) else [str(each) for each in chosen]
            wait_s = None if follow else timeout_s

            def open_reader(name: str, start: Start) -> Reader:
                return self._read_one(name, start, follow, None, wait_s, None)

            reader = MergedReader(self.backend, topics, open_reader, start, follow, limit, timeout_s)
        self._parts.readers.add(reader)
        return reader

    def _read_one(
        self,
        topic: str,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> Reader:
        backend = self.backend
        if isinstance(backend, HasReader):
            reader: Reader = backend.read(topic, start, follow, limit, timeout_s, partitions)
            return reader
        return StreamReader(backend.open_topic(topic), start, follow, limit, timeout_s, partitions)

    def read_as_member(
        self,
        group: str,
        topic: str,
        *,
        reset: Literal["earliest", "latest"] = "earliest",
        follow: bool = False,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> CommittingReader:
        """Read as a member of one of the stream's groups, and commit what is done. `reset` is where to start without
        a committed offset. Raises ConfigError for a stream without `Feature.GROUPS`."""
        self.check_usable()
        backend = self.backend
        if not isinstance(backend, HasGroupReader):
            raise ConfigError(f"{self.url} cannot be read as a member of group {group!r}: it has no {Feature.GROUPS}")
        return backend.group_reader(group, topic, reset=reset, follow=follow, limit=limit, timeout_s=timeout_s)

    def open_topic(self, topic: str) -> TopicStream:
        """Open a topic, which need not exist yet, for appending and reading batches. The caller closes it."""
        self.check_usable()
        check_topic_name(topic)
        return self.backend.open_topic(topic)

    @property
    def bootstrap(self) -> str:
        """The address for other Kafka clients. Raises ConfigError if the stream does not speak Kafka's protocol."""
        if not isinstance(self.backend, HasBootstrap):
            raise ConfigError(f"{self.url} does not speak Kafka's protocol: it has no address for Kafka's clients")
        return self.backend.bootstrap

    @property
    def features(self) -> Features:
        return self.backend.features

    def pointer_text(self, pointer: Pointer) -> str:
        """A pointer as people know it: in the system's own form if it has one, such as Redis' `MS-SEQ`."""
        return self.backend.pointer_text(pointer) if isinstance(self.backend, NamesPointers) else str(pointer)

    def parse_pointer(self, text: str) -> Pointer:
        """The pointer that people write like this. Raises ConfigError."""
        if isinstance(self.backend, NamesPointers):
            return self.backend.parse_pointer(text)
        if not text.isdecimal():
            raise ConfigError(f"{text!r} is not an offset of {self.url}: offsets are integers")
        return int(text)

    def topics(self) -> list[str]:
        """The names of all topics, without the stream's internal ones."""
        self.check_usable()
        return list(self.backend.topics())

    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, by default with the stream's default number of partitions.

        `config` holds Kafka's topic settings, such as `retention.ms`, if the stream has them. Raises TopicExistsError,
        InvalidTopicError and ConfigError.
        """
        check_topic_name(topic)
        if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int)):
            raise ConfigError(f"partitions={partitions!r} must be an integer")
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"config={config!r} is not a mapping of settings: pass {{'retention.ms': '60000'}}")
        self.admin().create(topic, partitions, config or {})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        check_topic_name(topic)
        self.admin().delete(topic)

    def admin(self, timeout_s: float | None = None) -> Admin:
        """Administration of topics. A stream without `Feature.ADMIN` raises ConfigError for what it cannot do."""
        self.check_usable()
        backend = self.backend
        return backend.admin(timeout_s) if isinstance(backend, HasAdmin) else PlainAdmin(backend)

    def group_admin(self, timeout_s: float | None = None) -> GroupAdmin:
        """Administration of the stream's own groups."""
        self.check_usable()
        backend = self.backend
        return backend.group_admin(timeout_s) if isinstance(backend, HasAdmin) else NoGroups(backend)

    def survey(self, timeout_s: float) -> Survey:
        """Queries about all topics and groups at once."""
        self.check_usable()
        backend = self.backend
        return backend.survey(timeout_s) if isinstance(backend, HasAdmin) else PlainSurvey(backend)

    def record_times(self) -> RecordTimes:
        """Looks up the timestamps of single records. The caller closes it."""
        self.check_usable()
        backend = self.backend
        return backend.record_times() if isinstance(backend, HasAdmin) else PlainRecordTimes(backend)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, close all readers, and close the stream.

        Gives up records that are not acknowledged after `timeout_s` seconds, by default the stream's
        `delivery_timeout_s`. Raises DeliveryError as `flush` does; the connection is closed in any case.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._forgotten is not None:
            self._forgotten.detach()
        if self._forks == FORKS.count:  # a forked process has none of the threads to wait for
            self._parts.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it in a thread, so that the event loop is not blocked."""
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"<Connection to {self.url}{' (closed)' if self._closed else ''}>"

    @property
    def sender(self) -> Sender:
        """The sender of this connection, opened at first use."""
        sender = self._parts.sender
        if (
            sender is not None
            and not self._closed
            and self._forks == FORKS.count  # no function calls here: this runs for every record
            and (self._reach is None or self._reach.problem is None)
        ):
            return sender
        with self._lock:
            self.check_usable()
            parts = self._parts
            if parts.sender is None:
                parts.is_own_sender = not isinstance(self.backend, HasSender)
                parts.sender = (
                    self.backend.sender() if isinstance(self.backend, HasSender) else AppendSender(self.backend)
                )
            return parts.sender

    def check_usable(self) -> None:
        """Raise ConnectionClosedError after `close` or in a fork, and BrokerUnavailableError if the stream is gone."""
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")
        if self._forks != FORKS.count:
            raise ConnectionClosedError(
                f"the connection to {self.url} belongs to process {self._pid}: connect in this process, too"
            )
        if self._reach is not None:
            self._reach.check_usable()

    def check_there(self, timeout_s: float) -> None:
        """Raise BrokerUnavailableError unless the stream accepts connections, however slowly it answers."""
        self.check_usable()
        if self._reach is not None:
            self._reach.check_there(timeout_s)


def _chosen(topic: str | Sequence[str] | re.Pattern[str]) -> Sequence[str | Topic[Any]] | TopicPattern:
    if isinstance(topic, TopicPattern):
        raise InvalidTopicError(
            f"read takes a compiled pattern, not {topic!r}: pass re.compile({str(topic)!r}). Values are bytes"
        )
    return topics_of(topic)


def _let_go(parts: _Parts, url: str, pid: int) -> None:
    """Flush a connection that was never closed, when it is collected or the program ends."""
    if pid != os.getpid():
        return
    warnings.warn(f"the connection to {url} was not closed: use it in a with block", ResourceWarning, stacklevel=2)
    try:
        parts.close(_EXIT_FLUSH_S)
    except DeliveryError as error:
        logger.error("the connection to %s was not closed, and %s", url, error)
