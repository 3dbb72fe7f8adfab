"""nng without answers: publish/subscribe and pipeline."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.abc import Feature, Features
from penstock.channels.endpoints import Endpoint
from penstock.channels.frames import MAGIC
from penstock.channels.nng.settings import LONGEST_TOPIC_BYTES, NngSettings
from penstock.channels.nng.sockets import import_pynng, open_socket, receive
from penstock.channels.one_way_channel import OneWayChannel
from penstock.model import NewRecord

_LONGEST_WAIT_S: Final = 1_000.0


class NngChannel(OneWayChannel):
    """`abc.Channel` on nng. It begins to listen and to send when first asked to."""

    def __init__(self, endpoint: Endpoint, settings: NngSettings) -> None:
        is_plain = settings.format == "plain"
        super().__init__(
            endpoint, is_plain=is_plain, topic=settings.topic, max_message_bytes=settings.max_message_bytes
        )
        self._pynng = import_pynng()
        self._settings = settings
        self._is_pubsub = settings.pattern == "pubsub"
        self._has_peer = threading.Event()
        self._sent_s: float | None = None
        """When something was last sent."""

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
        """Wait until the last records are transmitted, at most `linger_s`. nng drops those that are not when the
        socket closes."""
        if not self._is_pubsub:
            # Without a queue, a socket that takes another message has handed the last one to the system.
            select.select([self._sink.send_fd], [], [], self._settings.linger_s)
        elif self._sent_s is not None:
            time.sleep(max(0.0, self._sent_s + self._settings.linger_s - time.monotonic()))

    def _open_source(self) -> Any:
        pynng, settings = self._pynng, self._settings

        def prepare(made: Any) -> None:
            if self._is_pubsub:
                made.recv_buffer_size = settings.messages
                for topic in self._topic.split(","):
                    made.subscribe(topic.strip())

        with self._opening:
            self._check_open()
            kind = pynng.Sub0 if self._is_pubsub else pynng.Pull0
            return open_socket(self._endpoint, settings, kind, listens=True, prepare=prepare)

    def _receive(self, wait_s: float | None) -> bool:
        pynng = self._pynng
        try:
            if wait_s is not None:
                self._source.recv_timeout = int(min(wait_s, _LONGEST_WAIT_S) * 1000) + 1
            message = receive(pynng, self._source, block=wait_s is not None)
        except (pynng.TryAgain, pynng.Timeout):
            return False
        except pynng.Closed:
            raise self._closed() from None
        if not self._is_plain:
            start = message.find(MAGIC, 0, LONGEST_TOPIC_BYTES + len(MAGIC))
            message = message[start:] if start > 0 else message
        self._read(message)
        return True

    def _open_sink(self) -> Any:
        pynng, settings = self._pynng, self._settings

        def prepare(made: Any) -> None:
            made.send_buffer_size = settings.messages if self._is_pubsub else 0
            made.send_timeout = int(settings.send_timeout_s * 1000)
            made.add_post_pipe_connect_cb(lambda pipe: self._has_peer.set())

        with self._opening:
            self._check_open()
            kind = pynng.Pub0 if self._is_pubsub else pynng.Push0
            sink = open_socket(self._endpoint, settings, kind, listens=False, prepare=prepare)
        if self._is_pubsub:  # what is published before somebody is connected is lost
            self._has_peer.wait(settings.wait_for_listener_s)
        return sink

    def _transmit(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            try:
                self._sink.send(message)
            except self._pynng.Timeout:
                raise self._no_listener(self._settings.send_timeout_s) from None
            except self._pynng.Closed:
                raise self._closed() from None
            self._sent_s = time.monotonic()

    def _messages(self, records: Sequence[NewRecord]) -> list[bytes]:
        topic = self._topic.encode()
        if not self._is_plain:
            return [topic + frame for frame in self._frames(records, self._max_message_bytes - len(topic))]
        messages = [topic + (record.value or b"") for record in records]
        self._check_sizes(messages)
        return messages


class CountingNngChannel(NngChannel):
    """A channel that also is `abc.CountingLosses`: a publisher numbers its records, and every subscriber should get
    each."""

    FEATURES: ClassVar[Features] = NngChannel.FEATURES | {Feature.LOSS_COUNT}

    @property
    def lost(self) -> int:
        return self._reader.lost
