"""The connection that users hold: send, read, and look after topics."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from penstock.abc import Features
from penstock.errors import BrokerUnavailableError, ConnectionClosedError, DeliveryError
from penstock.model import NewRecord, Receipt
from penstock.model.observing import OBSERVED, send_traced
from penstock.serde import Topic, new_record
from penstock.streams.forks import FORKS
from penstock.streams.kafka.reaching import new_admin
from penstock.streams.kafka.reading import Reader, Start
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.sending import Sender, Sending
from penstock.streams.kafka.settings import producer_configuration
from penstock.streams.kafka.stream import Closeable, KafkaStream, features_with
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.options import Options
from penstock.streams.url import without_password

logger = logging.getLogger(__name__)

_EXIT_FLUSH_S: Final = 10.0
"""How long a program that forgets to close its connection is held up for what it has sent."""


class Attendant(Protocol):
    """What keeps the broker of an embedded log running while the connection is open."""

    @property
    def problem(self) -> str | None:
        """Why the broker can no longer be reached over this connection."""

    def tell(self, on_problem: Callable[[str], None]) -> None:
        """Call this when there is a problem."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Parts:
    """What a connection is made of, kept apart from it so that it can be let go of when the connection is forgotten."""

    attendant: Attendant | None
    sender: Sending | None = None
    administration: TopicAdministration | None = None
    readers: weakref.WeakSet[Closeable] = field(default_factory=weakref.WeakSet)
    """Readers and feeds."""

    def close(self, flush_timeout_s: float) -> None:
        with contextlib.ExitStack() as stack:
            if self.attendant is not None:
                stack.callback(self.attendant.close)
            for reader in list(self.readers):
                stack.callback(reader.close)
            if self.sender is not None:
                stack.callback(self.sender.close, flush_timeout_s)
        self.administration = None

    def give_up(self, reason: str) -> None:
        """Nothing that is under way will arrive."""
        if self.sender is not None:
            self.sender.give_up(reason)


class Connection:
    """A stream, connected. Made by `connect`; used in a `with` block, or closed with `close`.

    Any thread may use it. A process forked from this one must make its own.
    """

    def __init__(self, url: str, bootstrap: str, options: Options, attendant: Attendant | None = None) -> None:
        self.url = without_password(url)
        self.bootstrap = bootstrap
        """The address that other Kafka clients may be given."""
        self.options = options
        self._parts = Parts(attendant)
        if attendant is not None:
            attendant.tell(self._parts.give_up)
        self._pid = os.getpid()
        self._forks = FORKS.count
        self._lock = threading.Lock()
        self._closed = False
        self._forgotten = weakref.finalize(self, _let_go, self._parts, self.url, self._pid)

    def send(
        self,
        topic: str | Topic[Any],
        value: object,
        key: object = None,
        *,
        headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None = None,
        timestamp: datetime.datetime | int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Send a record. It is under way when this returns, and stored when its receipt says so.

        A Topic says how its values and keys are encoded; with the name of one, bytes and text go as they are, anything
        else as JSON. None is a record without a value. Records of one key go to one partition, in the order in which
        they were sent. `timestamp` is a time with a zone or milliseconds since 1970; without it, it is now. A topic
        that does not exist is created where the broker allows it.

        Raises DeliveryError when the record cannot even be taken: it is too large, its partition does not exist, or the
        buffer stayed full for `delivery_timeout_s`.
        """
        record = new_record(topic, value, key, headers, timestamp, partition)
        if OBSERVED.tracer is not None and isinstance(self.sender, Sender):  # a spool tells the tracer itself
            return send_traced(OBSERVED.tracer, record, self._send)
        return self.sender.send(  # as `_send` does, for which every record would pay
            record.topic, record.value, record.key, record.headers, record.timestamp_ms, record.partition
        )

    def _send(self, record: NewRecord) -> Receipt:
        return self.sender.send(
            record.topic, record.value, record.key, record.headers, record.timestamp_ms, record.partition
        )

    def send_through(self, sender: Sending) -> None:
        """Send through this from now on. Nothing must have been sent before; it is closed with the connection."""
        with self._lock:
            self._check_usable()
            assert self._parts.sender is None, "records have been sent already"
            self._parts.sender = sender

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged.

        Raises DeliveryError when a record sent since the last flush could not be delivered and nobody has learnt it
        from its receipt, and TimeoutError when some are still under way after `timeout` seconds.
        """
        self._check_usable()
        if self._parts.sender is not None:
            self._parts.sender.flush(timeout)

    @property
    def unacknowledged(self) -> int:
        """How many records have been sent and neither acknowledged nor refused."""
        return self._parts.sender.unacknowledged if self._parts.sender is not None else 0

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        follow: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
        partitions: Iterable[int] | None = None,
    ) -> Reader:
        """Read records again, without a group: an iterator over them, in order within each partition.

        `start` is "earliest", "latest", a time with a zone, a Position, or an offset for each partition
        (`{0: 42, 1: 7}`). It ends at what was the end when it was made, or after `limit` records; with `follow` it goes
        on with what comes, and ends when nothing has come for `timeout` seconds. `partitions` are all, unless given.

        Raises UnknownTopicError, and OffsetOutOfRangeError when an offset asked for is gone or not yet there, also
        while reading, when records are deleted faster than they are read.
        """
        topics = self.administration
        reader = Reader(topics, self.bootstrap, self.options, topic, start, follow, limit, timeout, partitions)
        self.keep(reader)
        return reader

    def stream(self, topic: str) -> KafkaStream:
        """A topic as a stream: what consumers and producers are built on. It need not exist yet."""
        self._check_usable()
        return KafkaStream(self, topic)

    @property
    def features(self) -> Features:
        """What this stream can do for a program."""
        return features_with(self.options)

    def topics(self) -> list[str]:
        """The names of all topics, but for those that the broker keeps for itself."""
        return [topic.name for topic in self.administration.all() if not topic.internal]

    def create_topic(self, topic: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; without `partitions` it has as many as the broker gives by default.

        `config` has Kafka's names, such as `retention.ms`. Raises TopicExistsError, InvalidTopicError and ConfigError.
        """
        self.administration.create(topic, partitions, config or {})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        self.administration.delete(topic)

    @property
    def administration(self) -> TopicAdministration:
        """Everything about topics; what users need often has a method of its own above."""
        with self._lock:
            self._check_usable()
            if self._parts.administration is None:
                admin = new_admin(self.bootstrap, self.options)
                self._parts.administration = TopicAdministration(admin, security=Security(self.options.librdkafka))
            return self._parts.administration

    def keep(self, part: Closeable) -> None:
        """Close it with the connection, unless it has been forgotten by then."""
        self._check_usable()
        self._parts.readers.add(part)

    def settle_sent(self) -> None:
        """Wait until each record that was sent is acknowledged or refused, which happens in `delivery_timeout_s`.

        Who sent them learns from their receipts what became of them.
        """
        sender = self._parts.sender
        if sender is not None and self._is_usable():
            sender.wait_until_settled(self.options.delivery_timeout_s)

    def close(self, timeout: float | None = None) -> None:
        """Flush, end all readers, and let go of the broker.

        After `timeout` seconds, or else `delivery_timeout_s`, what is not acknowledged is given up. Raises
        DeliveryError as `flush` does; closed it is in any case.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._forgotten.detach()
        if self._forks == FORKS.count:  # a forked process has none of the threads that would be waited for
            self._parts.close(self.options.delivery_timeout_s if timeout is None else timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {self.url}{' (closed)' if self._closed else ''}>"

    @property
    def sender(self) -> Sending:
        """What everything that is sent goes through."""
        sender = self._parts.sender
        if sender is not None and self._is_usable():
            return sender
        with self._lock:
            self._check_usable()
            if self._parts.sender is None:
                configuration = producer_configuration(self.bootstrap, self.options)
                self._parts.sender = Sender(configuration, self.options.delivery_timeout_s)
            return self._parts.sender

    def _is_usable(self) -> bool:
        attendant = self._parts.attendant
        return not self._closed and self._forks == FORKS.count and (attendant is None or attendant.problem is None)

    def _check_usable(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the connection to {self.url} is closed: connect again")
        if self._forks != FORKS.count:
            raise ConnectionClosedError(
                f"the connection to {self.url} belongs to process {self._pid}, which made it: connect in this one, too"
            )
        problem = self._parts.attendant.problem if self._parts.attendant is not None else None
        if problem is not None:
            raise BrokerUnavailableError(problem)


def _let_go(parts: Parts, url: str, pid: int) -> None:
    """The connection was forgotten, or the program ends, without `close`: save what was sent, if that can be done."""
    if pid != os.getpid():
        return
    warnings.warn(f"the connection to {url} was not closed: use it in a with block", ResourceWarning, stacklevel=2)
    try:
        parts.close(_EXIT_FLUSH_S)
    except DeliveryError as error:
        logger.error("the connection to %s was not closed, and %s", url, error)
