"""A connection to a STOMP broker, which comes back by itself.

Three threads meet here. The link's own thread connects, sends heart-beats, and notices a silent peer. The thread of
stomp.py, one for each connection, reads and calls the methods of `_Session` that begin with "on". Callers write, and
wait for receipts. What they share is guarded by `_changed`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    NotAllowedError,
    PenstockError,
    RecordTooLargeError,
    StaleDeliveryError,
    StreamError,
)
from penstock.model import Record
from penstock.queues.pending import STORE_FULL, Pending, finish_lost, says_too_large, shortened, too_large
from penstock.queues.reconnecting import ReconnectingLink
from penstock.queues.stomp.messages import decode, frame
from penstock.queues.stomp.settings import StompSettings
from penstock.queues.stomp.sockets import is_writable, new_transport
from penstock.streams.adapting.servers import tls_context
from penstock.streams.backend_url import BackendUrl
from penstock.streams.url import Host

VERSION: Final = "1.2"
ARTEMIS: Final = "ActiveMQ-Artemis/"
ARTEMIS_MESSAGE_BYTES: Final = 1024
"""Artemis limits its prefetch by bytes: this many for each message of the prefetch."""
REFUSALS: Final = ("authorized", "security", "access", "permission", "denied", "password", "bad connect", "credentials")
"""What the errors of brokers about users have in common."""
_PRECONDITION: Final = "precondition_failed"
_ARTEMIS_MESSAGE: Final = re.compile(r"CoreMessage\[.*?\bsize=(\d+)", re.DOTALL)
"""How Artemis repeats a message, whole, that it could not store. Large values are stored otherwise, large headers are
not."""
ARTEMIS_RECORD_BYTES: Final = 490 * 1024
"""What Artemis stores of a message besides a large value, unless its `journal-buffer-size` is another."""
FRAME_BYTES: Final = 200
"""What a frame has besides: the command, the length, the receipt and the transaction."""
LAST_WORD_S: Final = 2.0
"""How long to wait for the reason of a broker that has closed the connection while it was written to."""
CLOSE_S: Final = 2.0
"""How long closing waits for the broker's goodbye."""

Message = tuple[Sequence[tuple[str, str]], bytes]
"""Headers, the destination among them, and the body."""


@dataclass(frozen=True, slots=True, eq=False)
class StompDelivery:
    """`abc.Delivery`. Deliveries of a lost connection, an earlier `generation`, cannot be settled."""

    record: Record
    attempt: int
    tag: int
    generation: int
    ack: str
    """By which the broker knows it."""
    headers: Mapping[str, str] = field(repr=False)
    """Raw bytes, like `body`."""
    body: bytes = field(repr=False)


class Link(ReconnectingLink[StompDelivery]):
    """A connection for sending, or for receiving if it has a `destination` to subscribe to. Any thread may use it.

    Brokers stop reading a connection that sends more than they can store, so that sending must not share one with
    the acknowledgements that would make room.
    """

    def __init__(self, url: BackendUrl, queue: str, settings: StompSettings, destination: str | None = None) -> None:
        super().__init__(
            url.shown,
            f"penstock-stomp-{queue}",
            connect_timeout_s=settings.connect_timeout_s,
            answer_timeout_s=settings.send_timeout_s,
        )
        self.server = ""
        """What the broker calls itself, such as `ActiveMQ/5.18.3`."""
        self._url = url
        self._hosts = itertools.cycle(url.hosts)
        self._queue = queue
        self._settings = settings
        self._destination = destination
        settings.check_tls(url, "stomp+ssl")
        settings.password_of(url)
        self._tls = (
            tls_context(url.shown, settings.ca_file, settings.cert_file, settings.key_file)
            if url.scheme == "stomp+ssl"
            else None
        )
        self._session: _Session | None = None
        """The connection, from when the broker has accepted it."""
        self._awaited: dict[str, Pending] = {}
        """By receipt id."""
        self._numbers = itertools.count(1)
        self._tags = itertools.count(1)
        self.start()

    def settle(
        self, deliveries: Sequence[StompDelivery], frames_of: Callable[[StompDelivery], Iterable[Message]], command: str
    ) -> list[StompDelivery]:
        """Acknowledge deliveries, and return those that are late.

        `frames_of` gives the headers of the ACK or NACK, and the SENDs before it. ACKs of several deliveries, and what
        is sent with them, are one transaction.
        """
        with self._changed:
            self._check_open()
            claimed, late = self._split(deliveries)
            if not claimed:
                return late
            work = [
                (name, headers, body)
                for delivery in claimed
                for name, (headers, body) in _named(command, frames_of(delivery))
            ]
            session = self._session
            assert session is not None, "deliveries of a lost connection are late"
            # A broker may refuse NACKs in a transaction, as ActiveMQ does.
            data, pending = self._in_transaction(work, confirm_each=True) if command == "ACK" else self._each(work)
        self._write(session, data, pending, f"settling deliveries of {self._queue}")
        return late

    def give_again(self, deliveries: Sequence[StompDelivery], counts: bool) -> list[StompDelivery]:
        """Deliver these again from here, as the broker goes on counting them as ours. Returns those that are late."""
        with self._changed:
            self._check_open()
            claimed, late = self._split(deliveries)
            for delivery in reversed(claimed):
                again = dataclasses.replace(delivery, attempt=delivery.attempt + int(counts), tag=next(self._tags))
                self._held[again.tag] = None
                self._arrived.appendleft(again)
            self._changed.notify_all()
        return late

    def send(self, messages: Sequence[Message], *, confirm_each: bool) -> None:
        largest_bytes = max(map(size_bytes, messages))
        with self._changed:
            self._check_open()
            if self._problem is not None:
                raise self._problem
            session = self._session
            assert session is not None, "there is a session while there is no problem"
            work = [("SEND", headers, body) for headers, body in messages]
            data, pending = self._in_transaction(work, confirm_each=confirm_each)
            pending.largest_bytes = largest_bytes
        self._write(session, data, pending, f"sending to {self._queue}", STORE_FULL)

    def close(self) -> None:
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            session = self._session
            data, pending = self._each([("DISCONNECT", (), b"")])
            self._changed.notify_all()
        if session is not None:
            if session.try_write(data):
                pending.done.wait(CLOSE_S)
            session.end(ConnectionClosedError(f"the connection to {self._shown} is closed"))
        self._thread.join(self._settings.connect_timeout_s + CLOSE_S)

    def _each(self, work: Iterable[tuple[str, Sequence[tuple[str, str]], bytes]]) -> tuple[bytes, Pending]:
        """Send frames, each with a receipt to wait for. The caller holds `_changed`."""
        pending = Pending(0)
        data = [frame(name, (*headers, self._receipt(pending)), body) for name, headers, body in work]
        return b"".join(data), pending

    def _in_transaction(
        self, work: Sequence[tuple[str, Sequence[tuple[str, str]], bytes]], *, confirm_each: bool
    ) -> tuple[bytes, Pending]:
        """Send frames that take effect together, when the receipt of the COMMIT comes. The caller holds `_changed`.

        With `confirm_each`, the receipts of all SENDs are waited for, too.
        """
        if len(work) == 1:
            return self._each(work)
        pending = Pending(0)
        transaction = ("transaction", f"t{next(self._numbers)}")
        data = [frame("BEGIN", (transaction,))]
        for name, headers, body in work:
            receipt = (self._receipt(pending),) if confirm_each and name == "SEND" else ()
            data.append(frame(name, (*headers, transaction, *receipt), body))
        data.append(frame("COMMIT", (transaction, self._receipt(pending))))
        return b"".join(data), pending

    def _receipt(self, pending: Pending) -> tuple[str, str]:
        number = f"r{next(self._numbers)}"
        pending.left += 1
        self._awaited[number] = pending
        return "receipt", number

    def _write(self, session: _Session, data: bytes, pending: Pending, what: str, hint: str = "") -> None:
        session.write(data, self._settings.send_timeout_s)
        pending.wait(self._settings.send_timeout_s, what, hint)

    def _consume(self) -> None:
        """Nothing to do: deliveries come from the beginning, if there is a destination."""

    # Called by the link's thread.

    def _serve(self) -> None:
        session = _Session(self)
        try:
            session.connect(next(self._hosts), self._settings, self._tls, self._url)
            self._begin(session)
            session.attend()
        except PenstockError as error:
            session.end(error)
        except Exception as error:  # whatever stomp.py raises: callers must hear of it, and the thread go on
            session.end(self.unavailable(error))
        session.close()

    def _begin(self, session: _Session) -> None:
        """Use this connection, which the broker has accepted."""
        with self._changed:
            session.check()
            self.server = session.server
            self._generation += 1
            self._session = session
            headers = [("id", "1"), ("destination", self._destination or ""), ("ack", "client-individual")]
            if self.server.startswith(ARTEMIS):
                window_bytes = str(self._settings.prefetch * ARTEMIS_MESSAGE_BYTES)
                headers += [("consumer-window-size", window_bytes), ("subscription-type", "ANYCAST")]
            else:
                prefetch = str(self._settings.prefetch)
                headers += [("activemq.prefetchSize", prefetch), ("prefetch-count", prefetch)]
            data, pending = self._each([("SUBSCRIBE", headers, b"")] if self._destination is not None else [])
        if data:
            self._write(session, data, pending, f"subscribing to {self._destination}")
        with self._changed:
            if self._session is session:
                self._problem = None
            self._changed.notify_all()

    # Called for a session, by any thread.

    def lost(self, session: _Session, problem: PenstockError) -> None:
        """Note that the connection cannot be used any more, and fail what waits for it."""
        with self._changed:
            is_used = self._session is session
            waiting = set(self._awaited.values()) if is_used else set()
            if is_used:
                self._awaited.clear()
                self._session = None
            replaced = self.unavailable("the connection is being replaced")
            is_about_one_call = isinstance(problem, RecordTooLargeError | StaleDeliveryError)
            self._forget(replaced if is_about_one_call else problem)
        finish_lost(waiting, problem, replaced)

    def delivered(self, session: _Session, frames: Sequence[Any]) -> None:
        decoded = [
            (decode(self._queue, each.headers, each.body), 1 + int(each.headers.get("redelivered") == "true"), each)
            for each in frames
        ]
        with self._changed:
            if session is not self._session:
                return
            generation = self._generation
            self._deliver(
                [
                    StompDelivery(
                        record, attempt, next(self._tags), generation, each.headers["ack"], each.headers, each.body
                    )
                    for record, attempt, each in decoded
                ]
            )

    def received(self, receipt: str) -> None:
        with self._changed:
            pending = self._awaited.pop(receipt, None)
        if pending is not None:
            pending.finish()

    def refused(self, headers: Mapping[str, str], body: bytes, is_connecting: bool) -> PenstockError:
        """The error that an ERROR frame means."""
        text = headers.get("message") or body.decode(errors="replace").strip().partition("\n")[0] or "no reason given"
        if text == _PRECONDITION:  # RabbitMQ says in the body which
            text = body.decode(errors="replace")
        if says_too_large(text):
            return self.too_large(text)
        if (of_artemis := _ARTEMIS_MESSAGE.search(text)) is not None:
            text = text[: of_artemis.start()].rstrip()
            if int(of_artemis[1]) > ARTEMIS_RECORD_BYTES:
                return self.too_large(f"{text}. Its headers have {of_artemis[1]} bytes there, two for each character")
        text, lower = shortened(text), text.lower()
        if is_connecting:
            if "version" in lower:
                return BrokerUnavailableError(
                    f"{self._shown} does not speak STOMP {VERSION}: {text}. Upgrade the broker", retriable=False
                )
            if any(word in lower for word in REFUSALS):
                return self._login_refused(f": {text}", self._settings)
            return BrokerUnavailableError(f"{self._shown} refused the connection: {text}")
        if any(word in lower for word in REFUSALS):
            return NotAllowedError(f"{self._shown} denied a request: {text}")
        if any(word in lower for word in ("unexpected ack", "no message", "not been consumed", "not found")):
            return StaleDeliveryError(f"{self._shown} no longer knows a delivery of {self._queue}: {text}")
        return StreamError(f"{self._shown} refused a request: {text}")

    def too_large(self, text: str) -> RecordTooLargeError:
        return too_large(self._queue, self._shown, text, "raise the limits of the broker for STOMP")

    def unavailable(self, reason: object) -> BrokerUnavailableError:
        text = str(reason) or type(reason).__name__
        return BrokerUnavailableError(f"STOMP broker at {self._shown} cannot be reached: {text}. Is it running?")


class _Session:
    """One connection to a broker. stomp.py's thread calls the methods that begin with "on"."""

    def __init__(self, link: Link) -> None:
        self.server = ""
        self._link = link
        self._transport: Any = None
        self._socket: Any = None
        self._writing = threading.Lock()
        self._inbox: list[Any] = []
        self._answer: Mapping[str, str] | None = None
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self._error: PenstockError | None = None
        self._beat_s = self._silence_s = 0.0

    # Called by the link's thread.

    def connect(self, host: Host, settings: StompSettings, tls: ssl.SSLContext | None, url: BackendUrl) -> None:
        """Open the connection and wait for the broker's answer."""
        try:
            password = settings.password_of(url)
        except ConfigError as error:  # it cannot be read at the moment
            raise BrokerUnavailableError(str(error)) from error
        timeout_s = settings.connect_timeout_s
        self._transport = new_transport(self, host, settings, tls, self._deliver)
        try:
            self._transport.start()
        except ssl.SSLCertVerificationError as error:
            raise BrokerUnavailableError(
                f"the certificate of {url.shown} is not trusted: {error.verify_message}. Set ca_file to the "
                "certificates that are",
                retriable=False,
            ) from error
        except OSError as error:
            raise self._link.unavailable(error) from error
        self._socket = self._transport.socket
        beat_ms = round(settings.heartbeat_s * 1000)
        headers = {
            "accept-version": VERSION,
            "host": settings.vhost or host.name,
            # Half as often as we do it, as brokers give no grace.
            "heart-beat": f"{2 * beat_ms},{beat_ms}",
        }
        if url.user is not None:
            headers |= {"login": url.user, "passcode": password or ""}
        # This frame is not escaped, for brokers that know STOMP 1.0 only.
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self.write(f"CONNECT\n{lines}\n\0".encode(), timeout_s)
        self._answered.wait(timeout_s)
        self.check()
        if self._answer is None:
            raise self._link.unavailable(f"there was no answer within {timeout_s:g} s. Is it a port for STOMP?")
        if self._answer.get("version") != VERSION:
            theirs = self._answer.get("version", "1.0")  # the version that does not say so
            raise BrokerUnavailableError(
                f"{url.shown} is too old: it speaks STOMP {theirs}, and {VERSION} is needed: upgrade the broker",
                retriable=False,
            )
        self.server = self._answer.get("server", "")
        theirs_ms = self._answer.get("heart-beat", "0,0").partition(",")[0]
        self._beat_s = settings.heartbeat_s
        if theirs_ms.isdecimal() and theirs_ms != "0":
            self._silence_s = 2 * max(settings.heartbeat_s, int(theirs_ms) / 1000)

    def attend(self) -> None:
        """Send heart-beats until the connection ends, and end it when the broker is silent."""
        while not self._ended.wait(self._beat_s):
            silent_s = time.monotonic() - self._transport.heard_s
            if self._silence_s and silent_s > self._silence_s:
                self.end(self._link.unavailable(f"it was silent for {silent_s:.1f} s"))
            elif self._writing.acquire(blocking=False):  # else another thread writes, which does as well
                try:
                    if is_writable(self._socket):
                        self._transport.send(b"\n")
                except Exception as error:  # OSError, or what stomp.py makes of it
                    self.end(self._link.unavailable(error))
                finally:
                    self._writing.release()

    def close(self) -> None:
        """Wait for stomp.py's thread, after `end`."""
        thread = self._transport.io_thread if self._transport is not None else None
        if thread is not None:
            thread.join(CLOSE_S)
        if self._socket is not None:
            self._socket.close()

    # Called by any thread.

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send frames. An error ends the connection, and is told to those who wait for receipts."""
        if not self._writing.acquire(timeout=timeout_s):
            raise self._link.unavailable(f"it takes nothing since {timeout_s:g} s")
        try:
            self._transport.send(data)
        except Exception as error:  # OSError, or what stomp.py makes of it
            if isinstance(error, ConnectionError):
                self._ended.wait(LAST_WORD_S)  # the thread that reads has the broker's own word, if there is one
            self.end(self._link.unavailable(error))
        finally:
            self._writing.release()

    def try_write(self, data: bytes) -> bool:
        """Send frames if that needs no waiting. Whether they were sent."""
        if not self._writing.acquire(timeout=CLOSE_S):
            return False
        try:
            if self._ended.is_set() or not is_writable(self._socket):
                return False
            self._transport.send(data)
        except Exception:  # OSError, or what stomp.py makes of it
            return False
        finally:
            self._writing.release()
        return True

    def end(self, error: PenstockError) -> None:
        """Close the connection because of this error; the first one counts."""
        with self._ending:
            if self._ended.is_set():
                return
            self._error = error
            self._ended.set()
        if self._transport is not None:
            self._transport.running = False
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the peer was faster
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes those who read and write
        self._answered.set()
        self._link.lost(self, error)

    # Called by stomp.py's thread.

    def on_connected(self, answer: Any) -> None:
        self._answer = answer.headers
        self._answered.set()

    def on_message(self, message: Any) -> None:
        self._inbox.append(message)

    def _deliver(self) -> None:
        """Deliver the messages of one read of the socket together."""
        if self._inbox:
            arrived, self._inbox = self._inbox, []
            self._link.delivered(self, arrived)

    def on_receipt(self, receipt: Any) -> None:
        self._link.received(receipt.headers["receipt-id"])

    def on_error(self, error: Any) -> None:
        self.end(self._link.refused(error.headers, error.body, is_connecting=self._answer is None))

    def on_disconnected(self) -> None:
        what = "it closed the connection" if self._answer is not None else "it closed the connection without an answer"
        self.end(self._link.unavailable(what))


def _named(command: str, messages: Iterable[Message]) -> list[tuple[str, Message]]:
    """The last one is the acknowledgement."""
    *sent, acknowledged = messages
    return [*(("SEND", each) for each in sent), (command, acknowledged)]


def size_bytes(message: Message) -> int:
    """About the size of its frame: that of its receipt and transaction are not known."""
    headers, body = message
    return FRAME_BYTES + len(body) + sum(len(name) + len(value) + 2 for name, value in headers)
