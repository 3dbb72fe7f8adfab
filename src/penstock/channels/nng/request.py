"""nng with answers: a listener (REP) tells each sender (REQ) what it has stored.

Both use nng's raw mode, in which a socket has any number of requests under way: the header of a message says which
request it answers. REQ and REP sockets of other programs see no difference.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from penstock.channels.endpoints import Endpoint
from penstock.channels.nng.settings import NngSettings
from penstock.channels.nng.sockets import import_pynng, open_socket
from penstock.channels.request_channel import RequestChannel
from penstock.channels.requests import RequestInbox, RequestOutbox
from penstock.errors import BrokerUnavailableError, ConnectionClosedError, StreamError
from penstock.model import NewRecord

logger = logging.getLogger(__name__)

_LAST: Final = 0x80000000
"""Marks the request's id in a header, behind the ids of devices that it came through."""
_ROOM_S: Final = 1.0
_STOP_S: Final = 30.0


class NngRequestChannel(RequestChannel):
    """`abc.Channel` and `abc.Acknowledging` on nng."""

    def __init__(self, endpoint: Endpoint, settings: NngSettings) -> None:
        super().__init__(endpoint, is_plain=settings.format == "plain")
        import_pynng()
        self._settings = settings

    def _open_listener(self) -> _Listener:
        return _Listener(self._endpoint, self._settings)

    def _open_sender(self) -> _Sender:
        return _Sender(self._endpoint, self._settings)


class _Raw:
    """A socket in raw mode, and a thread that receives."""

    def __init__(
        self, endpoint: Endpoint, settings: NngSettings, kind: str, *, listens: bool, on_lost: Any = None
    ) -> None:
        self._pynng = import_pynng()
        self._shown = endpoint.shown
        self._linger_s = settings.linger_s if listens else 0.0
        self._sent_s: float | None = None
        """When something was last sent."""
        self.is_closing = False

        def make() -> Any:
            opener = getattr(self._pynng.lib, f"nng_{kind.lower()}0_open_raw")
            return getattr(self._pynng, f"{kind}0")(opener=opener)

        def prepare(made: Any) -> None:
            made.recv_buffer_size = made.send_buffer_size = settings.messages
            made.send_timeout = int((settings.send_timeout_s if listens else settings.answer_timeout_s) * 1000)
            if on_lost is not None:
                made.add_post_pipe_remove_cb(lambda pipe: on_lost())

        self._socket = open_socket(endpoint, settings, make, listens=listens, prepare=prepare)

    def receive(self) -> tuple[bytes, bytes] | None:
        """Header and body of the next message; None once the socket is closed."""
        lib, ffi = self._pynng.lib, self._pynng.ffi
        try:
            message = self._socket.recv_msg()
        except self._pynng.Closed:
            return None
        raw = message._nng_msg
        body = message.bytes if lib.nng_msg_len(raw) else b""
        return bytes(ffi.buffer(lib.nng_msg_header(raw), lib.nng_msg_header_len(raw))), body

    def send(self, header: bytes, body: bytes) -> None:
        """Send a message, from any thread. Raises BrokerUnavailableError or ConnectionClosedError."""
        message = self._pynng.Message(body)
        self._pynng.check_err(self._pynng.lib.nng_msg_header_append(message._nng_msg, header, len(header)))
        try:
            self._socket.send_msg(message)
        except self._pynng.Timeout:
            raise BrokerUnavailableError(f"{self._shown}: nobody listens, or the listener has no room") from None
        except self._pynng.Closed:
            raise ConnectionClosedError(f"the channel {self._shown} is closed") from None
        self._sent_s = time.monotonic()

    def close(self) -> None:
        """Close the socket once the last answers had time to be transmitted. nng drops those that were not."""
        self.is_closing = True
        if self._sent_s is not None:
            time.sleep(max(0.0, self._sent_s + self._linger_s - time.monotonic()))
        self._socket.close()


class _Listener:
    """The listening side. A thread receives requests; any thread may answer them."""

    def __init__(self, endpoint: Endpoint, settings: NngSettings) -> None:
        self._shown = endpoint.shown
        self.inbox = RequestInbox(endpoint.name, settings.messages, is_plain=settings.format == "plain")
        self._raw = _Raw(endpoint, settings, "Rep", listens=True)
        self._thread = threading.Thread(target=self._run, name=f"penstock-nng-{endpoint.name}", daemon=True)
        self._thread.start()

    def taken(self) -> None:
        """Nothing to do: the receiving thread itself waits for room."""

    def close(self) -> None:
        self.inbox.close()
        self._raw.close()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            while (received := self._raw.receive()) is not None:  # ends with the socket
                header, message = received
                answer = functools.partial(self._answer, header)
                while not self.inbox.put(message, answer, wait_s=_ROOM_S):
                    if self._raw.is_closing:
                        return
        except Exception as error:  # whatever it is, those who listen must hear of it
            logger.exception("channel %s: the listening thread failed", self._shown)
            self.inbox.report(StreamError(f"{self._shown} cannot be listened to any more: {error}; open it again"))

    def _answer(self, header: bytes, answer: bytes) -> None:
        try:
            self._raw.send(header, answer)
        except (BrokerUnavailableError, ConnectionClosedError) as error:
            logger.warning("channel %s: an answer could not be sent: %s", self._shown, error)


class _Sender:
    """The sending side: callers send requests, and a thread receives the answers."""

    def __init__(self, endpoint: Endpoint, settings: NngSettings) -> None:
        self._shown = endpoint.shown
        self._outbox = RequestOutbox(endpoint.shown, settings.max_message_bytes, settings.answer_timeout_s)
        has_one_peer = not settings.binds(listens=False)
        self._raw = _Raw(
            endpoint, settings, "Req", listens=False, on_lost=self._outbox.lose_connection if has_one_peer else None
        )
        self._thread = threading.Thread(target=self._run, name=f"penstock-nng-{endpoint.name}-send", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[NewRecord]) -> None:
        self._outbox.send(records, self._transmit)

    def close(self) -> None:
        self._outbox.close()
        self._raw.close()
        self._thread.join(_STOP_S)

    def _transmit(self, number: int, frame: bytes, until_s: float) -> None:
        if self._outbox.is_wanted(number):
            self._raw.send((_LAST | number & (_LAST - 1)).to_bytes(4), frame)

    def _run(self) -> None:
        try:
            while (received := self._raw.receive()) is not None:  # ends with the socket
                try:
                    self._outbox.answered(received[1])
                except StreamError as error:
                    logger.warning("channel %s: %s", self._shown, error)
        except Exception:  # whatever it is, those who wait must hear of it
            logger.exception("channel %s: the thread that receives answers failed", self._shown)
        finally:
            self._outbox.close()
