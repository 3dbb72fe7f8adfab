"""One connection to a node of RabbitMQ, by the stream protocol.

A thread reads the socket and passes each frame on: answers to those who wait for them, chunks to the mailbox of their
subscription. Any thread may send. A connection that breaks fails everybody who waits for it, at once, and is never used
again: so every call is bounded, and nobody waits for an answer that was lost.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import BrokerUnavailableError, PenstockError, StreamError, UnknownTopicError
from penstock.streams.rabbitmq.protocol import (
    ANSWER,
    Code,
    Command,
    FrameError,
    OffsetSpec,
    Reply,
    RequestRefusedError,
    StoredChunk,
    frame,
    meaning,
    properties,
    publish_frame,
    read_chunk,
    text,
    texts,
)
from penstock.streams.url import Host

logger = logging.getLogger(__name__)

BLOCKED: Final = ". Does it run, and has no alarm for disk or memory (rabbitmq-diagnostics check_local_alarms)?"
"""With an alarm, the server reads nothing from its clients, and does not say so."""
IDS: Final = 256
"""How many subscriptions a connection can have, and how many publishers."""
_RECEIVE_BYTES: Final = 1 << 18
_LARGEST_FRAME_BYTES: Final = 256 << 20
"""A longer frame is none: what answers is not RabbitMQ, or bytes were lost."""
_HEARTBEATS: Final = 2
"""A server that is silent for this many heartbeats is lost."""
_REFUSAL_S: Final = 4.0
"""How much later RabbitMQ answers when it refuses a login: it waits for 3 s."""
_NOT_READY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What sockets raise that would have to wait."""
_CLIENT: Final = {"product": "penstock", "platform": "Python"}


@dataclass(frozen=True, slots=True)
class Login:
    """How a connection logs in."""

    user: str
    password: str = field(repr=False)
    vhost: str
    mechanism: str
    name: str
    timeout_s: float
    heartbeat_s: int
    tls: ssl.SSLContext | None


class Mailbox:
    """Holds a subscription's chunks and a publisher's errors as they arrive. One thread takes them out."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._changed = threading.Condition()
        self._chunks: deque[StoredChunk] = deque()
        self._refused: list[tuple[int, int]] = []
        self._problem: PenstockError | None = None

    def put(self, chunk: StoredChunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify_all()

    def refuse(self, refused: Sequence[tuple[int, int]]) -> None:
        """Add publishing ids, with the codes because of which the server did not store the messages."""
        with self._changed:
            self._refused.extend(refused)
            self._changed.notify_all()

    def fail(self, problem: PenstockError) -> None:
        """Nothing more will come."""
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    @property
    def is_broken(self) -> bool:
        return self._problem is not None

    def __len__(self) -> int:
        """The number of waiting chunks."""
        return len(self._chunks)

    def take(self, timeout_s: float) -> StoredChunk | None:
        """The next chunk; None on a timeout, or if there are refusals. Raises the error that ended the subscription."""
        with self._changed:
            if not self._chunks:
                self._changed.wait_for(lambda: self._chunks or self._problem or self._refused, max(0.0, timeout_s))
            if self._chunks:
                return self._chunks.popleft()
            if self._problem is not None:
                raise self._problem
            return None

    def take_refused(self) -> list[tuple[int, int]]:
        with self._changed:
            refused, self._refused = self._refused, []
            return refused


class _Waiting:
    """A caller that waits for an answer."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.payload: bytes | None = None


class StreamConnection:
    """A connection that is open. `close` ends it; `problem` says why it ended by itself."""

    def __init__(self, host: Host, login: Login) -> None:
        self.host = host
        self.where = f"RabbitMQ at {host}"
        self.problem: PenstockError | None = None
        self.frame_max = 0
        self.server: dict[str, str] = {}
        """What the server tells of itself: `version`, `advertised_host`, `advertised_port`, ..."""
        self._login = login
        self._heartbeat_s = login.heartbeat_s
        self._answer_s = login.timeout_s
        """How long an answer may take."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._socket_use = threading.Lock()
        """Sockets with TLS must not be used by two threads at the same moment."""
        self._ids = itertools.count(1)
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._subscriptions: dict[int, Mailbox] = {}
        self._publishers: dict[int, Mailbox] = {}
        self._sent_s = self._received_s = time.monotonic()
        self._socket = self._connect()
        self._thread = threading.Thread(target=self._run, name=f"rabbitmq-stream {host}", daemon=True)
        self._thread.start()
        try:
            self._log_in()
        except BaseException:
            self.lose("the login failed")
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        return self.problem is None

    @property
    def address(self) -> tuple[str, str]:
        """The address that this node tells to clients."""
        return self.server.get("advertised_host", ""), self.server.get("advertised_port", "")

    @property
    def has_room(self) -> bool:
        """Whether there is an id for one more subscription and publisher."""
        return len(self._subscriptions) < IDS and len(self._publishers) < IDS

    def request(self, command: Command, what: str, *parts: bytes) -> Reply:
        """The answer to a request, behind its code. RequestRefusedError if the code is not OK."""
        answer = self.ask(command, *parts)
        code = answer.number("H")
        if code != Code.OK:
            raise RequestRefusedError(self.where, what, code)
        return answer

    def ask(self, command: Command, *parts: bytes) -> Reply:
        """The answer to a request. BrokerUnavailableError if there is none in time; the connection is then lost."""
        waiting = _Waiting()
        number = next(self._ids)
        with self._lock:
            self._check_usable()
            self._waiting[command, number] = waiting
        try:
            self.send(frame(command, struct.pack(">I", number), *parts))
            answered = waiting.done.wait(self._answer_s)
        finally:
            with self._lock:
                self._waiting.pop((command, number), None)
        if not answered:
            self.lose(f"it did not answer within {self._answer_s:g} s{BLOCKED}")
        if waiting.payload is None:
            self._check_usable()
            raise BrokerUnavailableError(f"{self.where} did not answer")
        return Reply(waiting.payload)

    def subscribe(self, stream: str, start: OffsetSpec, credit: int, mailbox: Mailbox) -> int:
        """Deliver the chunks of a stream to a mailbox, as many as there is credit for. Returns the subscription's
        id."""
        id = self._take_id(self._subscriptions, mailbox)
        try:
            self.request(
                Command.SUBSCRIBE,
                f"to read stream {stream!r}",
                struct.pack(">B", id),
                text(stream),
                start.encoded(),
                struct.pack(">H", credit),
            )
        except StreamError:
            self._subscriptions.pop(id, None)
            raise
        return id

    def give_credit(self, id: int, chunks: int) -> None:
        """Let the server deliver `chunks` more chunks."""
        self.send(frame(Command.CREDIT, struct.pack(">BH", id, chunks)))

    def unsubscribe(self, id: int, mailbox: Mailbox) -> None:
        """End a subscription, unless the server has ended it: then its id may be another's."""
        self._end(self._subscriptions, id, mailbox, Command.UNSUBSCRIBE)

    def declare_publisher(self, stream: str, reference: str, mailbox: Mailbox) -> int:
        """Prepare for publishing to a stream. The server drops messages whose publishing id the reference has used."""
        id = self._take_id(self._publishers, mailbox)
        try:
            self.request(
                Command.DECLARE_PUBLISHER,
                f"to publish to stream {stream!r}",
                struct.pack(">B", id),
                text(reference),
                text(stream),
            )
        except StreamError as error:
            self._publishers.pop(id, None)
            if isinstance(error, RequestRefusedError) and error.code == Code.PRECONDITION_FAILED:
                raise BrokerUnavailableError(f"{error}{BLOCKED}") from error  # its answer while it has an alarm
            raise
        return id

    def publish(self, publisher: int, messages: Sequence[tuple[int, bytes]]) -> None:
        self.send(publish_frame(publisher, messages))

    def delete_publisher(self, id: int, mailbox: Mailbox) -> None:
        self._end(self._publishers, id, mailbox, Command.DELETE_PUBLISHER)

    def leader(self, stream: str) -> tuple[tuple[str, str], list[tuple[str, str]]]:
        """The addresses of the leader of a stream and of its replicas. Raises UnknownTopicError."""
        answer = self.ask(Command.METADATA, texts([stream]))
        nodes = {}
        for _ in range(answer.number("I")):
            reference, name, port = answer.number("H"), answer.text(), answer.number("I")
            nodes[reference] = (name, str(port))
        answer.number("I")
        answer.text()
        code, leader = answer.number("H"), answer.number("H")
        replicas = [answer.number("H") for _ in range(answer.number("I"))]
        if code == Code.STREAM_DOES_NOT_EXIST:
            raise UnknownTopicError(f"there is no stream {stream!r} in {self.where}")
        if code != Code.OK or leader not in nodes:
            raise BrokerUnavailableError(f"{self.where}: stream {stream!r} has no leader now: {meaning(code)}")
        return nodes[leader], [nodes[each] for each in replicas if each in nodes]

    def send(self, data: bytes) -> None:
        """Send whole frames. BrokerUnavailableError if the connection is lost."""
        with self._sending:
            self._check_usable()
            view = memoryview(data)
            try:
                while view:
                    try:
                        with self._socket_use:
                            view = view[self._socket.send(view) :]
                    except _NOT_READY:
                        if not _is_writable(self._socket, self._login.timeout_s):
                            self.lose(f"it took no data for {self._login.timeout_s:g} s")
                            self._check_usable()
            except (OSError, ValueError) as error:  # ValueError: it was closed meanwhile
                self.lose(str(error))
            self._sent_s = time.monotonic()
            self._check_usable()

    def lose(self, why: str) -> None:
        """End the connection, and fail all waiting calls."""
        with self._lock:
            if self.problem is not None:
                return
            self.problem = BrokerUnavailableError(f"{self.where} is unavailable: {why}")
            waiting = list(self._waiting.values())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in waiting:
            each.done.set()
        for mailbox in (*self._subscriptions.copy().values(), *self._publishers.copy().values()):
            mailbox.fail(self.problem)

    def close(self) -> None:
        if self.problem is None:
            with contextlib.suppress(PenstockError):
                self.request(Command.CLOSE, "to close", struct.pack(">H", Code.OK), text("OK"))
            self.lose("it was closed")
        if self._thread is not threading.current_thread():
            self._thread.join(self._login.timeout_s)

    def _check_usable(self) -> None:
        if self.problem is not None:
            raise BrokerUnavailableError(str(self.problem))

    def _end(self, taken: dict[int, Mailbox], id: int, mailbox: Mailbox, command: Command) -> None:
        if taken.get(id) is mailbox and self.is_usable:
            with contextlib.suppress(StreamError):  # the server ends it, too, when its stream is deleted
                self.request(command, "to end it", struct.pack(">B", id))
            with self._lock:
                if taken.get(id) is mailbox:
                    del taken[id]

    def _take_id(self, taken: dict[int, Mailbox], mailbox: Mailbox) -> int:
        with self._lock:
            self._check_usable()
            id = next((each for each in range(IDS) if each not in taken), None)
            if id is None:
                raise BrokerUnavailableError(f"{self.where}: a connection cannot have more than {IDS} subscriptions")
            taken[id] = mailbox
            return id

    def _connect(self) -> socket.socket:
        login = self._login
        try:
            raw = socket.create_connection((self.host.name, self.host.port), login.timeout_s)
        except OSError as error:
            raise BrokerUnavailableError(
                f"{self.where} is unavailable: {error}. Is it running, with the plugin rabbitmq_stream, and is the URL "
                "right?"
            ) from error
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = login.tls.wrap_socket(raw, server_hostname=self.host.name) if login.tls is not None else raw
        except OSError as error:  # also what TLS complains about
            raw.close()
            is_final = isinstance(error, ssl.SSLCertVerificationError)
            raise BrokerUnavailableError(
                f"{self.where} is unavailable: TLS failed: {error}", retriable=not is_final
            ) from error
        connected.setblocking(False)
        return connected

    def _log_in(self) -> None:
        login = self._login
        try:
            told = self.request(
                Command.PEER_PROPERTIES, "to connect", properties({**_CLIENT, "connection_name": login.name})
            )
            self.server = told.properties()
            mechanisms = self.request(Command.SASL_HANDSHAKE, "to log in").texts()
            if login.mechanism not in mechanisms:
                raise BrokerUnavailableError(
                    f"{self.where} does not let clients log in by {login.mechanism}, but by {', '.join(mechanisms)}",
                    retriable=False,
                )
            secret = b"" if login.mechanism == "EXTERNAL" else f"\0{login.user}\0{login.password}".encode()
            data = struct.pack(">I", len(secret)) + secret
            self._answer_s = login.timeout_s + _REFUSAL_S
            self._waiting[Command.TUNE, 0] = tuned = _Waiting()  # the server sends it by itself
            self.request(Command.SASL_AUTHENTICATE, "the login", text(login.mechanism), data)
            tuned.done.wait(login.timeout_s)
            if tuned.payload is None:
                self.lose("it did not say how large frames may be")
                self._check_usable()
            tune = Reply(tuned.payload or b"")
            self.frame_max, heartbeat_s = tune.number("I"), tune.number("I")
            self._heartbeat_s = min(heartbeat_s, login.heartbeat_s) if heartbeat_s else login.heartbeat_s
            self.send(frame(Command.TUNE, struct.pack(">II", self.frame_max, self._heartbeat_s)))
            opened = self.request(Command.OPEN, f"the virtual host {login.vhost!r}", text(login.vhost))
            self.server |= opened.properties()
            self._answer_s = login.timeout_s
        except RequestRefusedError as error:
            raise BrokerUnavailableError(f"{error}. {_remedy(error.code)}", retriable=False) from error

    def _run(self) -> None:
        """Read frames until the connection is lost."""
        buffer = bytearray()
        readable = selectors.DefaultSelector()
        try:
            readable.register(self._socket, selectors.EVENT_READ)
            while self.problem is None:
                received = self._receive(readable)
                if received:
                    buffer += received
                    self._received_s = time.monotonic()
                    self._read_frames(buffer)
        except PenstockError as error:
            self.lose(str(error))
        except OSError as error:
            self.lose(str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("%s: an unexpected frame", self.where)
            self.lose(repr(error))
        finally:
            readable.close()
            with contextlib.suppress(OSError):
                self._socket.close()

    def _receive(self, readable: selectors.BaseSelector) -> bytes:
        """Read some bytes; none when it is time to look at the clock."""
        try:
            with self._socket_use:
                received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                self.lose("it closed the connection")
            return received
        except _NOT_READY:
            pass
        now_s = time.monotonic()
        if now_s - self._received_s > _HEARTBEATS * self._heartbeat_s + 1:
            self.lose(f"it was silent for {now_s - self._received_s:.0f} s")
            return b""
        if self.frame_max and now_s - self._sent_s > self._heartbeat_s / 2:
            self._send_soon(frame(Command.HEARTBEAT))
        readable.select(self._heartbeat_s / 4)
        return b""

    def _send_soon(self, data: bytes) -> None:
        """Send a short frame, unless that would keep the reading thread waiting. If others are sending, they do."""
        if not self._sending.locked() and _is_writable(self._socket, 0.0):
            self.send(data)

    def _read_frames(self, buffer: bytearray) -> None:
        at = 0
        while len(buffer) - at >= 4:
            length = int.from_bytes(buffer[at : at + 4])
            if not 4 <= length <= _LARGEST_FRAME_BYTES:
                raise FrameError("it does not speak RabbitMQ's stream protocol: is the port right?")
            if len(buffer) - at - 4 < length:
                break
            with memoryview(buffer) as view:
                payload = bytes(view[at + 4 : at + 4 + length])
            at += 4 + length
            self._take_frame(payload)
        del buffer[:at]

    def _take_frame(self, payload: bytes) -> None:
        key, _ = struct.unpack_from(">HH", payload)
        if key == Command.DELIVER:
            mailbox = self._subscriptions.get(payload[4])
            chunk = read_chunk(payload, 5)
            if mailbox is not None and chunk is not None:
                mailbox.put(chunk)
        elif key == Command.PUBLISH_ERROR:
            self._take_refusals(payload)
        elif key == Command.METADATA_UPDATE:
            self._take_update(Reply(payload[4:]))
        elif key == Command.CLOSE:
            answer = Reply(payload[4:])
            number, code, reason = answer.number("I"), answer.number("H"), answer.text()
            with contextlib.suppress(PenstockError):
                self._send_soon(frame_of_answer(Command.CLOSE, number))
            self.lose(f"it closed the connection: {reason} ({meaning(code)})")
        elif key == Command.TUNE:
            self._settle(Command.TUNE, 0, payload[4:])
        elif key & ANSWER and key != ANSWER | Command.CREDIT:
            self._settle(key & ~ANSWER, int.from_bytes(payload[4:8]), payload[8:])

    def _settle(self, command: int, number: int, payload: bytes) -> None:
        with self._lock:
            waiting = self._waiting.get((command, number))
        if waiting is not None:
            waiting.payload = payload
            waiting.done.set()

    def _take_refusals(self, payload: bytes) -> None:
        mailbox = self._publishers.get(payload[4])
        refused = [(id, code) for id, code in struct.iter_unpack(">QH", payload[9:])]
        if mailbox is not None:
            mailbox.refuse(refused)

    def _take_update(self, answer: Reply) -> None:
        """A stream was deleted or has moved: its subscriptions and publishers are gone."""
        code, stream = answer.number("H"), answer.text()
        problem = BrokerUnavailableError(f"{self.where}: stream {stream!r} was deleted or has moved: {meaning(code)}")
        for known in (self._subscriptions, self._publishers):
            for id, mailbox in known.copy().items():
                if mailbox.stream == stream:
                    known.pop(id, None)
                    mailbox.fail(problem)


def _is_writable(connected: socket.socket, timeout_s: float) -> bool:
    with selectors.DefaultSelector() as writable:
        writable.register(connected, selectors.EVENT_WRITE)
        return bool(writable.select(timeout_s))


def frame_of_answer(command: Command, number: int) -> bytes:
    """The answer to a request of the server."""
    return struct.pack(">IHHIH", 10, ANSWER | command, 1, number, Code.OK)


def _remedy(code: int) -> str:
    remedies: Mapping[int, str] = {
        Code.AUTHENTICATION_FAILURE: "Check user and password in the URL",
        Code.AUTHENTICATION_FAILURE_LOOPBACK: "Use another user than guest, or change loopback_users of the server",
        Code.VIRTUAL_HOST_ACCESS_FAILURE: "Check the virtual host in the URL, and the permissions of this user",
    }
    return remedies.get(code, "Check the URL, and the log of the server")
