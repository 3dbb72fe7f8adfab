"""nng without answers: publish/subscribe and pipeline."""

from __future__ import annotations

import collections
import logging
import select
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.frames import MAGIC, FrameReader, FrameWriter
from penstock.channels.nng.settings import LONGEST_TOPIC_BYTES, NngSettings
from penstock.channels.nng.sockets import import_pynng, open_socket, receive
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, RecordTooLargeError, StreamError
from penstock.model import NewRecord, Record

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 1_000.0


class NngChannel:
    """`abc.Channel` on nng. It begins to listen and to send when first asked to."""

    FEATURES: ClassVar[Features] = frozenset({Feature.KEYS, Feature.HEADERS})
    """Of frames. Plain messages have none."""

    def __init__(self, endpoint: Endpoint, settings: NngSettings) -> None:
        self._pynng = import_pynng()
        self._endpoint = endpoint
        self._settings = settings
        self._closing = False
        self._opening = threading.Lock()
        self._source: Any = None
        self._ready: collections.deque[Record] = collections.deque()
        self._reader = FrameReader(endpoint.name, is_plain=settings.format == "plain")
        self._sending = threading.Lock()
        """Keeps the order of frames."""
        self._sink: Any = None
        self._has_peer = threading.Event()
        self._writer = FrameWriter()
        self._sent_s: float | None = None
        """When something was last sent."""

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
        if self._source is None:
            self._source = self._open_source()
        ready = self._ready
        while len(ready) < limit and self._receive(None):
            pass  # ends: nothing more has arrived, or there is enough
        while not ready:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            self._receive(left_s)
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def send(self, records: Sequence[NewRecord]) -> None:
        with self._sending:
            self._check_open()
            messages = self._messages(records)
            if self._sink is None and records:
                self._sink = self._open_sink()
                if self._settings.pattern == "pubsub":
                    self._has_peer.wait(self._settings.wait_for_listener_s)
            for message in messages:
                try:
                    self._sink.send(message)
                except self._pynng.Timeout:
                    raise BrokerUnavailableError(
                        f"{self._endpoint.shown}: nobody listens, or no listener had room for a record within "
                        f"{self._settings.send_timeout_s:g} s"
                    ) from None
                except self._pynng.Closed:
                    raise self._closed() from None
                self._sent_s = time.monotonic()

    def close(self) -> None:
        with self._opening:
            if self._closing:
                return
            self._closing = True
        if self._source is not None:
            self._source.close()
        if self._sink is not None:
            self._linger()
            self._sink.close()

    def _linger(self) -> None:
        """Leave the last records time to be transmitted: nng drops what is not."""
        if self._settings.pattern == "pipeline":
            # Without a queue, a socket that takes another message has handed the last one to the system.
            select.select([self._sink.send_fd], [], [], self._settings.linger_s)
        elif self._sent_s is not None:
            time.sleep(max(0.0, self._sent_s + self._settings.linger_s - time.monotonic()))

    def _check_open(self) -> None:
        if self._closing:
            raise self._closed()

    def _closed(self) -> ConnectionClosedError:
        return ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")

    def _open_source(self) -> Any:
        pynng, settings = self._pynng, self._settings
        is_pubsub = settings.pattern == "pubsub"

        def prepare(made: Any) -> None:
            if is_pubsub:
                made.recv_buffer_size = settings.messages
                for topic in settings.topic.split(","):
                    made.subscribe(topic.strip())

        with self._opening:
            self._check_open()
            kind = pynng.Sub0 if is_pubsub else pynng.Pull0
            return open_socket(self._endpoint, settings, kind, listens=True, prepare=prepare)

    def _receive(self, wait_s: float | None) -> bool:
        """Take one message, if there is one, after waiting for it; None: without waiting."""
        pynng = self._pynng
        try:
            if wait_s is not None:
                self._source.recv_timeout = int(min(wait_s, _LONGEST_WAIT_S) * 1000) + 1
            message = receive(pynng, self._source, block=wait_s is not None)
        except (pynng.TryAgain, pynng.Timeout):
            return False
        except pynng.Closed:
            raise self._closed() from None
        if self._settings.format == "penstock":
            start = message.find(MAGIC, 0, LONGEST_TOPIC_BYTES + len(MAGIC))
            message = message[start:] if start > 0 else message
        try:
            self._ready.extend(self._reader.read(message))
        except StreamError as error:
            logger.warning("channel %s: %s; it is dropped", self._endpoint.shown, error)
        return True

    def _open_sink(self) -> Any:
        pynng, settings = self._pynng, self._settings

        def prepare(made: Any) -> None:
            made.send_buffer_size = settings.messages if settings.pattern == "pubsub" else 0
            made.send_timeout = int(settings.send_timeout_s * 1000)
            made.add_post_pipe_connect_cb(lambda pipe: self._has_peer.set())

        with self._opening:
            self._check_open()
            kind = pynng.Pub0 if settings.pattern == "pubsub" else pynng.Push0
            return open_socket(self._endpoint, settings, kind, listens=False, prepare=prepare)

    def _messages(self, records: Sequence[NewRecord]) -> list[bytes]:
        settings = self._settings
        if "," in settings.topic:
            raise ConfigError(f"topic={settings.topic!r}: records are sent with one topic, without a comma")
        topic = settings.topic.encode()
        if settings.format == "penstock":
            frames = self._writer.frames(records, settings.max_message_bytes - len(topic))
            return [topic + frame for _, frame in frames]
        messages = [topic + (record.value or b"") for record in records]
        for message in messages:
            if len(message) > settings.max_message_bytes:
                raise RecordTooLargeError(
                    f"a record of {len(message)} bytes is larger than max_message_bytes={settings.max_message_bytes}: "
                    "send less in one record, or raise it on both sides"
                )
        return messages


class CountingNngChannel(NngChannel):
    """`abc.CountingLosses`, too: of what a publisher numbers, every subscriber should get every record."""

    FEATURES: ClassVar[Features] = NngChannel.FEATURES | {Feature.LOSS_COUNT}

    @property
    def lost(self) -> int:
        return self._reader.lost
