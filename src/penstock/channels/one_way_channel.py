"""`OneWayChannel`: what channels of frames without answers have in common, whatever their transport is."""

from __future__ import annotations

import abc
import collections
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.frames import FrameReader, FrameWriter
from penstock.channels.receive_buffer import check_limit
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, RecordTooLargeError, StreamError
from penstock.model import Headers, NewRecord, Record

logger = logging.getLogger(__name__)


class OneWayChannel(abc.ABC):
    """A part of `abc.Channel`: names, limits and errors, and records from messages."""

    FEATURES: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS})
    """The features of frames. Plain messages have none."""

    def __init__(self, endpoint: Endpoint, *, is_plain: bool, topic: str, max_message_bytes: int) -> None:
        self._endpoint = endpoint
        self._is_plain = is_plain
        self._topic = topic
        self._max_message_bytes = max_message_bytes
        self._closing = False
        self._opening = threading.Lock()
        self._listening = threading.Lock()
        """Held by `listen`: the source belongs to the thread that has it."""
        self._source: Any = None
        self._sending = threading.Lock()
        """Held by `send`: the same for the sink, and the order of frames."""
        self._sink: Any = None
        self._ready: collections.deque[Record] = collections.deque()
        self._reader = FrameReader(endpoint.name, is_plain=is_plain)
        self._writer = FrameWriter()

    @abc.abstractmethod
    def _open_source(self) -> Any:
        """The socket to receive from."""

    @abc.abstractmethod
    def _open_sink(self) -> Any:
        """The socket to send to, opened when somebody listens, or after waiting for that in vain."""

    @abc.abstractmethod
    def _messages(self, records: Sequence[NewRecord]) -> Sequence[Any]:
        """Records as messages of the transport. Raises RecordTooLargeError."""

    @abc.abstractmethod
    def _transmit(self, messages: Sequence[Any]) -> None:
        """Send messages to the sink, waiting for room."""

    @abc.abstractmethod
    def _receive(self, wait_s: float | None) -> bool:
        """Take one message, if there is one, after waiting for it; None: without waiting."""

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def features(self) -> Features:
        return frozenset() if self._is_plain else self.FEATURES

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        check_limit(limit)
        with self._listening:
            self._check_open()
            if self._source is None:
                self._source = self._open_source()
            return self._take(limit, wait_s)

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._sending:
            self._check_open()
            if "," in self._topic:
                raise ConfigError(f"topic={self._topic!r}: records are sent with one topic, without a comma")
            messages = self._messages(records)
            if not records:
                return
            if self._sink is None:
                self._sink = self._open_sink()
            self._transmit(messages)

    def _take(self, limit: int, wait_s: float) -> Sequence[Record]:
        """`listen` on the open socket."""
        until_s = time.monotonic() + wait_s
        ready = self._ready
        while len(ready) < limit and self._receive(None):
            pass  # ends: nothing more has arrived, or there is enough
        while not ready:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            self._receive(left_s)
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def _read(self, message: bytes, key: bytes | None = None, headers: Headers = ()) -> None:
        """Make records of a message. Key and headers are for one that is not a frame."""
        try:
            self._ready.extend(self._reader.read(message, key, headers))
        except StreamError as error:
            logger.warning("channel %s: %s; it is dropped", self._endpoint.shown, error)

    def _frames(self, records: Sequence[NewRecord], most_bytes: int) -> list[bytes]:
        return [frame for _, frame in self._writer.frames(records, most_bytes)]

    def _check_sizes(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if len(message) > self._max_message_bytes:
                raise RecordTooLargeError(
                    f"a record of {len(message)} bytes is larger than max_message_bytes={self._max_message_bytes}: "
                    "send less in one record, or raise it on both sides"
                )

    def _check_open(self) -> None:
        if self._closing:
            raise self._closed()

    def _closed(self) -> ConnectionClosedError:
        return ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")

    def _no_listener(self, timeout_s: float) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self._endpoint.shown}: nobody listens, or no listener had room for a record within {timeout_s:g} s"
        )
