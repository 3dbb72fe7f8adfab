"""ZeroMQ without answers: publish/subscribe (XPUB and SUB) and pipeline (PUSH and PULL)."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.frames import FrameReader, FrameWriter
from penstock.channels.zmq.settings import ZmqSettings
from penstock.channels.zmq.sockets import Sockets, Wake
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, RecordTooLargeError, StreamError
from penstock.model import Headers, NewRecord, Record

logger = logging.getLogger(__name__)

LONGEST_POLL_MS: Final = 1_000_000
MIDDLE_PART: Final = "part"
"""The header for a part of a plain message that is neither the first nor the last."""


class ZmqChannel:
    """`abc.Channel` on ZeroMQ. It begins to listen and to send when first asked to."""

    FEATURES: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS})
    """Of frames. Plain messages have none."""

    def __init__(self, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._sockets = Sockets(endpoint, settings)
        self._zmq = self._sockets.zmq
        self._closing = False
        self._wake = Wake()
        self._opening = threading.Lock()
        self._listening = threading.Lock()
        """Held by `listen`: the socket belongs to the thread that has it."""
        self._source: Any = None
        self._poller: Any = None
        self._ready: collections.deque[Record] = collections.deque()
        self._reader = FrameReader(endpoint.name, is_plain=settings.format == "plain")
        self._sending = threading.Lock()
        self._sink: Any = None
        self._writer = FrameWriter()

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def features(self) -> Features:
        return frozenset() if self._settings.format == "plain" else self.FEATURES

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        if limit < 1:
            raise ConfigError(f"limit={limit} must be an integer >= 1")
        until_s = time.monotonic() + wait_s
        with self._listening:
            self._check_open()
            if self._source is None:
                self._source = self._open_source()
            ready = self._ready
            while len(ready) < limit and self._receive():
                pass  # ends: nothing more has arrived, or there is enough
            while not ready:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return []
                self._poller.poll(min(left_s * 1000 + 1, LONGEST_POLL_MS))
                self._check_open()
                self._receive()
            return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._sending:
            self._check_open()
            messages = self._messages(records)
            if self._sink is None and records:
                self._sink = self._open_sink()
                self._await_listener()
            if self._settings.pattern == "pubsub" and records:
                self._forget_subscriptions()
            for message in messages:
                try:
                    self._sink.send_multipart(message)
                except self._zmq.Again:
                    raise BrokerUnavailableError(
                        f"{self._endpoint.shown}: nobody listens, or no listener had room for a record within "
                        f"{self._settings.send_timeout_s:g} s"
                    ) from None

    def close(self) -> None:
        with self._opening:
            if self._closing:
                return
            self._closing = True
        self._wake.set()
        with self._listening:
            if self._source is not None:
                self._source.close(0)
        with self._sending:
            if self._sink is not None:
                self._sink.close()  # lingers
        self._sockets.close()
        self._wake.close()

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")

    def _open_source(self) -> Any:
        zmq, is_pubsub = self._zmq, self._settings.pattern == "pubsub"
        with self._opening:
            self._check_open()
            source = self._sockets.open(zmq.SUB if is_pubsub else zmq.PULL, listens=True)
        if is_pubsub:
            for topic in self._settings.topic.split(","):
                source.subscribe(topic.strip())
        self._poller = zmq.Poller()
        self._poller.register(source, zmq.POLLIN)
        self._poller.register(self._wake.reader, zmq.POLLIN)
        return source

    def _receive(self) -> bool:
        """Take one message that has arrived; False if there is none."""
        try:
            parts = self._source.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        value, key, headers = plain_record(parts)
        try:
            self._ready.extend(self._reader.read(value, key, headers))
        except StreamError as error:
            logger.warning("channel %s: %s; it is dropped", self._endpoint.shown, error)
        return True

    def _open_sink(self) -> Any:
        zmq = self._zmq
        with self._opening:
            self._check_open()
            return self._sockets.open(zmq.XPUB if self._settings.pattern == "pubsub" else zmq.PUSH, listens=False)

    def _await_listener(self) -> None:
        """Wait for the first subscriber: what is published before is lost."""
        if self._settings.pattern == "pubsub" and self._settings.wait_for_listener_s:
            self._sink.poll(int(self._settings.wait_for_listener_s * 1000))

    def _forget_subscriptions(self) -> None:
        """An XPUB socket hands subscriptions to the program, and keeps them until then."""
        while self._sink.events & self._zmq.POLLIN:  # ends: each call takes one
            self._sink.recv()

    def _messages(self, records: Sequence[NewRecord]) -> list[list[bytes]]:
        settings = self._settings
        if "," in settings.topic:
            raise ConfigError(f"topic={settings.topic!r}: records are sent with one topic, without a comma")
        envelope = [settings.topic.encode()] if settings.pattern == "pubsub" else []
        if settings.format == "penstock":
            frames = self._writer.frames(records, settings.max_message_bytes)
            return [[*envelope, frame] for _, frame in frames]
        messages: list[list[bytes]] = []
        for record in records:
            value = record.value or b""
            if len(value) > settings.max_message_bytes:
                raise RecordTooLargeError(
                    f"a record of {len(value)} bytes is larger than max_message_bytes={settings.max_message_bytes}: "
                    "send less in one record, or raise it on both sides"
                )
            first = record.key if record.key is not None else settings.topic.encode()
            messages.append([first, value] if first or record.key is not None else [value])
        return messages


class CountingZmqChannel(ZmqChannel):
    """`abc.CountingLosses`, too: of what a publisher numbers, every subscriber should get every record."""

    FEATURES: ClassVar[Features] = ZmqChannel.FEATURES | {Feature.LOSS_COUNT}

    @property
    def lost(self) -> int:
        return self._reader.lost


def plain_record(parts: Sequence[bytes]) -> tuple[bytes, bytes | None, Headers]:
    """Value, key and headers of a message of another program."""
    key = parts[0] if len(parts) > 1 else None
    return parts[-1], key, tuple((MIDDLE_PART, part) for part in parts[1:-1])
