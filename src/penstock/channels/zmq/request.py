"""ZeroMQ with answers: a listener (ROUTER) tells each sender (DEALER, or REQ of another program) what it has stored.

Each side has a thread that owns its socket, as sockets of ZeroMQ belong to one thread at a time. Callers pass it work
and wake it.
"""

from __future__ import annotations

import collections
import functools
import importlib
import logging
import threading
from collections.abc import Sequence
from typing import Final

from penstock.channels.endpoints import Endpoint
from penstock.channels.request_channel import RequestChannel
from penstock.channels.requests import RequestInbox, RequestOutbox
from penstock.channels.zmq.one_way import LONGEST_POLL_MS, plain_record
from penstock.channels.zmq.settings import ZmqSettings
from penstock.channels.zmq.sockets import Sockets
from penstock.errors import StreamError
from penstock.model import NewRecord
from penstock.streams.adapting.servers import Waker

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""How many messages are taken before others are sent."""
_STOP_S: Final = 30.0


class ZmqRequestChannel(RequestChannel):
    """`abc.Channel` and `abc.Acknowledging` on ZeroMQ."""

    def __init__(self, endpoint: Endpoint, settings: ZmqSettings) -> None:
        super().__init__(endpoint, is_plain=settings.format == "plain")
        self._settings = settings
        self._sockets = Sockets(endpoint, settings)

    def _open_listener(self) -> _Listener:
        return _Listener(self._sockets, self._endpoint, self._settings)

    def _open_sender(self) -> _Sender:
        return _Sender(self._sockets, self._endpoint, self._settings)

    def close(self) -> None:
        super().close()
        self._sockets.close()


class _Listener:
    """The listening side: a thread that receives requests and sends answers."""

    def __init__(self, sockets: Sockets, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._zmq = sockets.zmq
        self._shown = endpoint.shown
        self.inbox = RequestInbox(endpoint.name, settings.buffer, is_plain=settings.format == "plain")
        self._socket = sockets.open(self._zmq.ROUTER, listens=True)
        self._wake = Waker()
        self._closing = False
        self._answers: collections.deque[list[bytes]] = collections.deque()
        self._held: list[bytes] | None = None
        """A request that waits for room in the inbox: no other is received until then."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-zmq-{endpoint.name}", daemon=True)
        self._thread.start()

    def taken(self) -> None:
        if self._held is not None:
            self._wake.wake()

    def close(self) -> None:
        self.inbox.close()
        self._closing = True
        self._wake.wake()
        self._thread.join(_STOP_S)
        self._wake.close()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # whatever it is, those who listen must hear of it
            logger.exception("channel %s: the listening thread failed", self._shown)
            self.inbox.report(StreamError(f"{self._shown} cannot be listened to any more: {error}; open it again"))
        finally:
            self._socket.close()

    def _serve(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._wake.reader, zmq.POLLIN)
        while not self._closing:
            if self._held is not None:
                self._put(self._held)
            poller.register(self._socket, zmq.POLLIN if self._held is None else 0)
            poller.poll(LONGEST_POLL_MS)
            self._wake.clear()
            self._send_answers()
            for _ in range(_AT_ONCE):
                if self._held is not None or not self._receive():
                    break
        self._send_answers()

    def _send_answers(self) -> None:
        while self._answers:  # ends: what comes later wakes the thread again
            try:
                self._socket.send_multipart(self._answers.popleft(), self._zmq.NOBLOCK)
            except self._zmq.ZMQError as error:
                logger.warning("channel %s: an answer could not be sent: %s", self._shown, error)

    def _receive(self) -> bool:
        try:
            parts: list[bytes] = self._socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        if len(parts) > 1:
            self._put(parts)
        return True

    def _put(self, parts: list[bytes]) -> None:
        """Put a request into the inbox, or hold it until there is room."""
        start = 2 if len(parts) > 2 and not parts[1] else 1  # an empty part follows the sender, if it is a REQ
        value, key, headers = plain_record(parts[start:])
        self._held = parts  # before it is tried: `taken` must not miss it
        if self.inbox.put(value, functools.partial(self._answer, parts[:start]), key=key, headers=headers):
            self._held = None

    def _answer(self, sender: list[bytes], answer: bytes) -> None:
        """Answer a request, from any thread."""
        self._answers.append([*sender, answer])
        self._wake.wake()


class _Sender:
    """The sending side: a thread that sends requests and receives answers."""

    def __init__(self, sockets: Sockets, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._zmq = sockets.zmq
        self._monitoring = importlib.import_module("zmq.utils.monitor")
        self._shown = endpoint.shown
        self._outbox = RequestOutbox(endpoint.shown, settings.max_message_bytes, settings.answer_timeout_s)
        self._socket = sockets.open(self._zmq.DEALER, listens=False)
        self._has_one_peer = not settings.binds(listens=False)
        self._monitor = self._socket.get_monitor_socket(self._zmq.EVENT_DISCONNECTED)
        self._wake = Waker()
        self._closing = False
        self._outgoing: collections.deque[tuple[int, bytes]] = collections.deque()
        """Requests with their numbers that ZeroMQ has not taken yet. Their callers wait, so they are few."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-zmq-{endpoint.name}-send", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[NewRecord]) -> None:
        self._outbox.send(records, self._transmit)

    def close(self) -> None:
        self._outbox.close()
        self._closing = True
        self._wake.wake()
        self._thread.join(_STOP_S)
        self._wake.close()

    def _transmit(self, number: int, frame: bytes, until_s: float) -> None:
        self._outgoing.append((number, frame))
        self._wake.wake()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:  # whatever it is, those who wait must hear of it
            logger.exception("channel %s: the sending thread failed", self._shown)
        finally:
            self._outbox.close()
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)

    def _serve(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        for each in (self._wake.reader, self._monitor):
            poller.register(each, zmq.POLLIN)
        while not self._closing:
            poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._outgoing else 0))
            poller.poll(LONGEST_POLL_MS)
            self._wake.clear()
            self._send_requests()
            self._receive_answers()
            self._notice_disconnection()

    def _send_requests(self) -> None:
        while self._outgoing:  # ends: each round takes one
            number, frame = self._outgoing[0]
            if self._outbox.is_wanted(number):
                try:
                    self._socket.send_multipart([b"", frame], self._zmq.NOBLOCK)
                except self._zmq.Again:
                    return
            self._outgoing.popleft()

    def _receive_answers(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                parts = self._socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            try:
                self._outbox.answered(parts[-1])
            except StreamError as error:
                logger.warning("channel %s: %s", self._shown, error)

    def _notice_disconnection(self) -> None:
        while self._monitor.poll(0):  # ends: there are no more events
            self._monitoring.recv_monitor_message(self._monitor)
            if self._has_one_peer:
                self._outbox.lose_connection()
