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
import time
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.channels.answers import OpenRequests, Refusal
from penstock.channels.frames import FrameWriter, decode
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.requests import Waiting, decode_answer, encode_answer
from penstock.channels.zmq.one_way import LONGEST_POLL_MS, USUAL_BYTES, plain_record
from penstock.channels.zmq.settings import Endpoint, ZmqSettings
from penstock.channels.zmq.sockets import Sockets, Wake
from penstock.errors import BrokerUnavailableError, ConfigError, ConnectionClosedError, StreamError
from penstock.model import NewRecord, Record

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""How many messages are taken before answers are sent."""
_STOP_S: Final = 30.0


class ZmqRequestChannel:
    """`abc.Channel` and `abc.Acknowledging` on ZeroMQ."""

    def __init__(self, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._sockets = Sockets(endpoint, settings)
        self._opening = threading.Lock()
        self._closing = False
        self._listener: _Listener | None = None
        self._sender: _Sender | None = None

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def features(self) -> Features:
        if self._settings.format == "plain":
            return frozenset({Feature.ANSWERS})
        return frozenset({Feature.ANSWERS, Feature.KEYS, Feature.HEADERS})

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        with self._opening:
            self._check_open()
            if self._listener is None:
                self._listener = _Listener(self._sockets, self._endpoint, self._settings)
        return self._listener.take(limit, wait_s)

    def acknowledge(self, records: Sequence[Record]) -> None:
        self._settle(records, None)

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self._settle(records, Refusal(reason, again))

    def send(self, records: Sequence[NewRecord]) -> None:
        if self._settings.format == "plain":
            raise ConfigError(
                f"{self._endpoint.shown}: with pattern=request, format=plain is for listening to other programs; omit "
                "it to send"
            )
        with self._opening:
            self._check_open()
            if not records:
                return
            if self._sender is None:
                self._sender = _Sender(self._sockets, self._endpoint, self._settings)
        self._sender.send(records)

    def close(self) -> None:
        with self._opening:
            if self._closing:
                return
            self._closing = True
        for side in (self._listener, self._sender):
            if side is not None:
                side.close()
        self._sockets.close()

    def _settle(self, records: Sequence[Record], refusal: Refusal | None) -> None:
        self._check_open()
        if self._listener is not None:
            self._listener.requests.settle(records, refusal)

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectionClosedError(f"the channel {self._endpoint.shown} is closed")


class _Listener:
    """The listening side: a thread that receives requests and sends answers."""

    def __init__(self, sockets: Sockets, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._zmq = sockets.zmq
        self._shown = endpoint.shown
        self._is_plain = settings.format == "plain"
        self._socket = sockets.open(self._zmq.ROUTER, listens=True)
        self._wake = Wake()
        self._closing = False
        self.requests = OpenRequests()
        self._buffer = ReceiveBuffer(endpoint.name, settings.buffer)
        self._answers: collections.deque[list[bytes]] = collections.deque()
        self._held: tuple[list[Arrived], Any] | None = None
        """A request that waits for room in the buffer: no other is received until then."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-zmq-{endpoint.name}", daemon=True)
        self._thread.start()

    def take(self, limit: int, wait_s: float) -> Sequence[Record]:
        records = self._buffer.take(limit, wait_s)
        if self._held is not None:
            self._wake.set()
        return records

    def close(self) -> None:
        self._buffer.close()
        self._closing = True
        self._wake.set()
        self._thread.join(_STOP_S)
        self._wake.close()

    def _run(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._wake.reader, zmq.POLLIN)
        while not self._closing:
            if self._held is None or self._put(*self._held):
                poller.register(self._socket, zmq.POLLIN)
            else:
                poller.register(self._socket, 0)
            poller.poll(LONGEST_POLL_MS)
            self._wake.clear()
            self._send_answers()
            for _ in range(_AT_ONCE):
                if self._held is not None or not self._receive():
                    break
        self._send_answers()
        self._socket.close()

    def _send_answers(self) -> None:
        while self._answers:  # ends: what comes later wakes the thread again
            answer = self._answers.popleft()
            try:
                self._socket.send_multipart(answer, self._zmq.NOBLOCK)
            except self._zmq.ZMQError as error:
                logger.warning("channel %s: an answer could not be sent: %s", self._shown, error)

    def _receive(self) -> bool:
        try:
            parts: list[bytes] = self._socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        start = 2 if len(parts) > 2 and not parts[1] else 1  # an empty part follows the sender, if it is a REQ
        sender, body = parts[:start], parts[start:]
        if not body:
            return True
        number: int | None = None
        arrived: list[Arrived]
        try:
            frame = None if self._is_plain else decode(body[-1])
        except StreamError as error:
            self._answer(sender, None, Refusal(str(error), again=False))
            return True
        if frame is None:
            value, key, headers = plain_record(body)
            arrived = [(value, key, headers, None)]
        else:
            number = frame.number
            arrived = [(each.value, each.key, each.headers, each.timestamp_ms) for each in frame.records]
        reply = functools.partial(self._answer, sender, number)
        if not arrived:
            reply(None)
        else:
            self._put(arrived, reply)
        return True

    def _put(self, arrived: list[Arrived], reply: Any) -> bool:
        """Put records into the buffer, or hold them until there is room."""
        has_room = self._buffer.put_request(arrived, lambda records: self.requests.add(records, reply))
        self._held = None if has_room else (arrived, reply)
        return has_room

    def _answer(self, sender: list[bytes], number: int | None, refusal: Refusal | None) -> None:
        """Any thread."""
        self._answers.append([*sender, encode_answer(number, refusal)])
        if not self._closing:
            self._wake.set()


class _Sender:
    """The sending side: a thread that sends requests and receives answers."""

    def __init__(self, sockets: Sockets, endpoint: Endpoint, settings: ZmqSettings) -> None:
        self._zmq = sockets.zmq
        self._monitoring = importlib.import_module("zmq.utils.monitor")
        self._shown = endpoint.shown
        self._settings = settings
        self._socket = sockets.open(self._zmq.DEALER, listens=False)
        self._is_single = not settings.binds(listens=False)
        """Whether there is one peer: then a lost connection is a lost request."""
        self._monitor = self._socket.get_monitor_socket(self._zmq.EVENT_DISCONNECTED)
        self._wake = Wake()
        self._closing = False
        self._lock = threading.Lock()
        self._writer = FrameWriter()
        self._outgoing: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        """Requests by their numbers that are not handed to ZeroMQ yet."""
        self._waiting: dict[int, Waiting] = {}
        """Who waits for the answer to a request, by its number."""
        self._thread = threading.Thread(target=self._run, name=f"penstock-zmq-{endpoint.name}-send", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[NewRecord]) -> None:
        until_s = time.monotonic() + self._settings.answer_timeout_s
        with self._lock:
            if self._closing:
                raise ConnectionClosedError(f"the channel {self._shown} is closed")
            frames = self._writer.frames(records, self._settings.max_message_bytes, USUAL_BYTES)
            waiting = Waiting(len(frames))
            for number, frame in frames:
                self._outgoing[number] = frame
                self._waiting[number] = waiting
        self._wake.set()
        try:
            waiting.wait(until_s, self._settings.answer_timeout_s, self._shown)
        finally:
            with self._lock:
                for number, _ in frames:
                    self._outgoing.pop(number, None)
                    self._waiting.pop(number, None)

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._fail_all(ConnectionClosedError(f"the channel {self._shown} was closed before an answer came"))
        self._wake.set()
        self._thread.join(_STOP_S)
        self._wake.close()

    def _fail_all(self, error: ConnectionClosedError | BrokerUnavailableError) -> None:
        with self._lock:
            waiting = {id(each): each for number, each in self._waiting.items() if number not in self._outgoing}
            if self._closing:
                waiting = {id(each): each for each in self._waiting.values()}
        for each in waiting.values():
            each.fail(error)

    def _run(self) -> None:
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
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

    def _send_requests(self) -> None:
        while True:  # ends: each round sends one request, or returns
            with self._lock:
                if not self._outgoing:
                    return
                number, frame = next(iter(self._outgoing.items()))
                try:
                    self._socket.send_multipart([b"", frame], self._zmq.NOBLOCK)
                except self._zmq.Again:
                    return
                del self._outgoing[number]

    def _receive_answers(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                parts = self._socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            try:
                answer = decode_answer(parts[-1])
            except StreamError as error:
                logger.warning("channel %s: %s", self._shown, error)
                continue
            with self._lock:
                waiting = self._waiting.pop(answer.number, None)
            if waiting is not None:  # else it came too late
                waiting.answered(answer)

    def _notice_disconnection(self) -> None:
        while self._monitor.poll(0):  # ends: there are no more events
            self._monitoring.recv_monitor_message(self._monitor)
            if self._is_single:
                self._fail_all(
                    BrokerUnavailableError(
                        f"the connection to {self._shown} was lost before an answer came: whether the listener has the "
                        "records is unknown"
                    )
                )
