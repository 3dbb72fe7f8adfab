"""`OneWayChannel`: what channels of frames without answers have in common, whatever their transport is."""

from __future__ import annotations

import abc
import collections
import logging
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.frames import FrameReader, FrameWriter
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, RecordTooLargeError, StreamError
from penstock.model import Headers, NewRecord, Record

logger = logging.getLogger(__name__)


class OneWayChannel(abc.ABC):
    """A part of `abc.Channel`: names, limits and errors, and records from messages."""

    FEATURES: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS})
    """Of frames. Plain messages have none."""

    def __init__(self, endpoint: Endpoint, *, is_plain: bool, topic: str, max_message_bytes: int) -> None:
        self._endpoint = endpoint
        self._is_plain = is_plain
        self._topic = topic
        self._max_message_bytes = max_message_bytes
        self._closing = False
        self._opening = threading.Lock()
        self._ready: collections.deque[Record] = collections.deque()
        self._reader = FrameReader(endpoint.name, is_plain=is_plain)
        self._writer = FrameWriter()

    @abc.abstractmethod
    def _receive(self, wait_s: float | None) -> bool:
        """Take one message, if there is one, after waiting for it; None: without waiting."""

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def features(self) -> Features:
        return frozenset() if self._is_plain else self.FEATURES

    def _take(self, limit: int, wait_s: float) -> Sequence[Record]:
        """`abc.Channel.listen`, of a socket that is open."""
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

    def _check_limit(self, limit: int) -> None:
        if limit < 1:
            raise ConfigError(f"limit={limit} must be an integer >= 1")

    def _check_topic(self) -> None:
        if "," in self._topic:
            raise ConfigError(f"topic={self._topic!r}: records are sent with one topic, without a comma")

    def _check_open(self) -> None:
        if self._closing:
            raise self._closed()

    def _closed(self) -> ConnectionClosedError:
        return ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")

    def _no_listener(self, timeout_s: float) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self._endpoint.shown}: nobody listens, or no listener had room for a record within {timeout_s:g} s"
        )
