"""The sockets of STOMP connections, and stomp.py's transport on top of them.

stomp.py reads in a thread of its own and splits what it reads into frames. Its own way to connect is not used: it hides
why a connection failed, and its TLS neither notices a peer that went away nor gives up one that is silent.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.queues.stomp.settings import StompSettings
from penstock.streams.adapting.servers import import_extra
from penstock.streams.url import Host

RECEIVED_AT_ONCE_BYTES: Final = 1 << 16


def connected(host: Host, connect_timeout_s: float, send_timeout_s: float, tls: ssl.SSLContext | None) -> Any:
    """A connected socket. Reads wait without limit, writes for `send_timeout_s`."""
    plain = socket.create_connection((host.name, host.port), connect_timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            return TlsSocket(tls.wrap_socket(plain, server_hostname=host.name), send_timeout_s)
        plain.settimeout(None)
        whole_s, part_s = divmod(send_timeout_s, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(whole_s), int(part_s * 1e6)))
    except BaseException:
        plain.close()
        raise
    return plain


def is_writable(one: Any) -> bool:
    """Whether a few bytes can be sent without waiting."""
    poll = select.poll()
    poll.register(one, select.POLLOUT)
    return bool(poll.poll(0))


class TlsSocket:
    """A TLS socket that one thread reads while others write. OpenSSL must not do both at once."""

    def __init__(self, inner: ssl.SSLSocket, send_timeout_s: float) -> None:
        inner.setblocking(False)
        self._inner = inner
        self._send_timeout_s = send_timeout_s
        self._lock = threading.Lock()

    def recv(self, size: int) -> bytes:
        data: bytes = self._when_ready(functools.partial(self._inner.recv, size), None)
        return data

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # ends: with the data, or with the connection
            left = left[self._when_ready(functools.partial(self._inner.send, left), self._send_timeout_s) :]

    def fileno(self) -> int:
        return self._inner.fileno()

    def getsockname(self) -> Any:
        return self._inner.getsockname()

    def shutdown(self, how: int) -> None:
        """Wake those who wait, without a TLS goodbye, which a silent peer would not answer."""
        with self._lock:
            self._inner.shutdown(how)

    def close(self) -> None:
        with self._lock:
            self._inner.close()

    def _when_ready(self, action: Callable[[], Any], timeout_s: float | None) -> Any:
        while True:  # ends: when it is done, or with the connection
            with self._lock:
                try:
                    return action()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                poll = select.poll()
                poll.register(self._inner, event)
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                raise TimeoutError(f"nothing was taken for {timeout_s:g} s")


def new_transport(
    listener: object, host: Host, settings: StompSettings, tls: ssl.SSLContext | None, before_read: Callable[[], None]
) -> Any:
    """stomp.py's transport, not yet started. It tells the listener about frames, and calls `before_read` when all
    frames that were read are handled."""
    transport = _transport_class()(auto_decode=False, recv_bytes=RECEIVED_AT_ONCE_BYTES)
    transport.connect_socket = functools.partial(
        connected, host, settings.connect_timeout_s, settings.send_timeout_s, tls
    )
    transport.before_read = before_read
    transport.set_listener("penstock", listener)
    return transport


@functools.cache
def _transport_class() -> Any:
    stomp = _import_stomp()

    class Transport(stomp.transport.Transport):  # type: ignore[misc, name-defined]
        """One connection, opened by `start`."""

        connect_socket: Callable[[], Any]
        before_read: Callable[[], None]
        heard_s = 0.0
        """When something was last read."""

        def attempt_connection(self) -> None:
            self.socket = self.connect_socket()
            self.heard_s = time.monotonic()

        def receive(self) -> Any:
            self.before_read()
            data = super().receive()
            self.heard_s = time.monotonic()
            return data

    return Transport


def _import_stomp() -> Any:
    os.environ.setdefault("STOMP_SKIP_HOSTNAME_SCAN", "1")  # else it asks the name servers when it is imported
    stomp = import_extra("stomp", "STOMP", "stomp")
    # It logs tracebacks of what is raised to our callers.
    logging.getLogger("stomp.py").setLevel(logging.CRITICAL)
    return stomp
