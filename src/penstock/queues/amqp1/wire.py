"""A connection to an AMQP 1.0 broker: a socket, TLS by Python, and the protocol by proton's engine.

proton's own event loop is not used: it cannot hold more than about a thousand files, and has TLS only where it was
compiled with it. Objects of proton are not safe for threads, not even when they are freed: all of them stay in the
thread that made them.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.queues.amqp1.login import Login
from penstock.streams.adapting.servers import Waker, import_extra

_READ_BYTES: Final = 1 << 16


def import_proton() -> Any:
    return import_extra("proton", "AMQP 1.0", "amqp1")


class Wire:
    """An open connection. Only the thread that made it may use it."""

    def __init__(self, host: str, port: int, login: Login, waker: Waker, timeout_s: float) -> None:
        proton = import_proton()
        self._waker = waker
        self.connection = proton.Connection()
        self._collector = proton.Collector()
        self.connection.collect(self._collector)
        self.connection.container = login.container
        self.connection.hostname = login.hostname or host
        if login.user is not None:
            self.connection.user = login.user
            self.connection.password = login.read_password() or ""
        self.transport = proton.Transport()
        sasl = self.transport.sasl()
        sasl.allowed_mechs(login.mechanism)
        sasl.allow_insecure_mechs = True  # proton does not know of our TLS; without TLS, the URL has asked for it
        self.transport.idle_timeout = login.idle_timeout_s
        self.transport.bind(self.connection)
        self.connection.open()
        self._socket = _connected(host, port, login.tls, timeout_s)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(waker.reader, selectors.EVENT_READ)

    def events(self) -> Iterator[Any]:
        """What happened since the last call."""
        while (event := self._collector.peek()) is not None:
            yield event
            self._collector.pop()

    def write(self) -> bool:
        """Send as much as the socket takes. Whether that was everything."""
        while (count := self.transport.pending()) > 0:
            try:
                sent = self._socket.send(self.transport.peek(count))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            self.transport.pop(sent)
        return True

    def wait(self, is_writing: bool, longest_s: float) -> None:
        """Wait until there is something to read or to do, and read it."""
        now_s = time.monotonic()
        deadline_s = self.transport.tick(now_s)
        wait_s = min(longest_s, max(0.0, deadline_s - now_s)) if deadline_s else longest_s
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_writing else 0)
        self._selector.modify(self._socket, interest)
        for key, happened in self._selector.select(wait_s):
            if key.fileobj is self._waker.reader:
                self._waker.clear()
            elif happened & selectors.EVENT_READ:
                self._read()

    def _read(self) -> None:
        while (room := self.transport.capacity()) > 0:
            try:
                data = self._socket.recv(min(room, _READ_BYTES))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                self.transport.close_tail()
                return
            self.transport.push(data)
            if len(data) < room and not isinstance(self._socket, ssl.SSLSocket):
                return

    def close(self) -> None:
        self._selector.close()
        self._socket.close()


def _connected(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname=host)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection
