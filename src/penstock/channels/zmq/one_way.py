"""ZeroMQ without answers: publish/subscribe (XPUB and SUB) and pipeline (PUSH and PULL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.one_way_channel import OneWayChannel
from penstock.channels.zmq.settings import ZmqSettings
from penstock.channels.zmq.sockets import Sockets
from penstock.model import Headers, NewRecord
from penstock.streams.adapting.servers import Waker

LONGEST_POLL_MS: Final = 1_000_000
MIDDLE_PART: Final = "part"
"""The header for a part of a plain message that is neither the first nor the last."""


class ZmqChannel(OneWayChannel):
    """`abc.Channel` on ZeroMQ. It begins to listen and to send when first asked to."""

    def __init__(self, endpoint: Endpoint, settings: ZmqSettings) -> None:
        is_plain = settings.format == "plain"
        super().__init__(
            endpoint, is_plain=is_plain, topic=settings.topic, max_message_bytes=settings.max_message_bytes
        )
        self._settings = settings
        self._is_pubsub = settings.pattern == "pubsub"
        self._sockets = Sockets(endpoint, settings)
        self._zmq = self._sockets.zmq
        self._wake = Waker()
        self._poller: Any = None

    def close(self) -> None:
        with self._opening:
            if self._closing:
                return
            self._closing = True
        self._wake.wake()
        with self._listening:
            if self._source is not None:
                self._source.close(0)
        with self._sending:
            if self._sink is not None:
                self._sink.close()  # lingers
        self._sockets.close()
        self._wake.close()

    def _open_source(self) -> Any:
        zmq = self._zmq
        with self._opening:
            self._check_open()
            source = self._sockets.open(zmq.SUB if self._is_pubsub else zmq.PULL, listens=True)
        if self._is_pubsub:
            for topic in self._topic.split(","):
                source.subscribe(topic.strip())
        self._poller = zmq.Poller()
        self._poller.register(source, zmq.POLLIN)
        self._poller.register(self._wake.reader, zmq.POLLIN)
        return source

    def _receive(self, wait_s: float | None) -> bool:
        if wait_s is not None:
            self._poller.poll(min(wait_s * 1000 + 1, LONGEST_POLL_MS))
            self._check_open()
        try:
            parts = self._source.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        if len(parts) == 1:
            self._read(parts[0])
        else:
            self._read(*plain_record(parts))
        return True

    def _open_sink(self) -> Any:
        zmq = self._zmq
        with self._opening:
            self._check_open()
            sink = self._sockets.open(zmq.XPUB if self._is_pubsub else zmq.PUSH, listens=False)
        if self._is_pubsub and self._settings.wait_for_listener_s:
            # What is published before somebody has subscribed is lost.
            sink.poll(int(self._settings.wait_for_listener_s * 1000))
        return sink

    def _transmit(self, messages: Sequence[list[bytes]]) -> None:
        if self._is_pubsub:
            self._forget_subscriptions()
        for message in messages:
            try:
                self._sink.send_multipart(message)
            except self._zmq.Again:
                raise self._no_listener(self._settings.send_timeout_s) from None

    def _forget_subscriptions(self) -> None:
        """Read the subscriptions that an XPUB socket keeps for the program, so that they take no memory."""
        while self._sink.events & self._zmq.POLLIN:  # ends: each call takes one
            self._sink.recv()

    def _messages(self, records: Sequence[NewRecord]) -> list[list[bytes]]:
        topic = self._topic.encode()
        if not self._is_plain:
            envelope = [topic] if self._is_pubsub else []
            return [[*envelope, frame] for frame in self._frames(records, self._max_message_bytes)]
        self._check_sizes([record.value or b"" for record in records])
        messages: list[list[bytes]] = []
        for record in records:
            first = topic if record.key is None else record.key
            value = record.value or b""
            messages.append([first, value] if first or record.key is not None else [value])
        return messages


class CountingZmqChannel(ZmqChannel):
    """A channel that also is `abc.CountingLosses`: a publisher numbers its records, and every subscriber should get
    each."""

    FEATURES: ClassVar[Features] = ZmqChannel.FEATURES | {Feature.LOSS_COUNT}

    @property
    def lost(self) -> int:
        return self._reader.lost


def plain_record(parts: Sequence[bytes]) -> tuple[bytes, bytes | None, Headers]:
    """The value, key and headers in a message of another program."""
    key = parts[0] if len(parts) > 1 else None
    return parts[-1], key, tuple((MIDDLE_PART, part) for part in parts[1:-1])
