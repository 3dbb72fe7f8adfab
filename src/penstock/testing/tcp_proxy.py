"""A TCP proxy that breaks the network between a client and a server on purpose."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import Final

from penstock.model.closing import Closing

LOOPBACK: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 1 << 16
_CHUNKS_HELD: Final = 1_000
"""How much of one direction of a connection may be on its way, so that a delay does not limit the throughput."""
_CONNECT_TIMEOUT_S: Final = 10.0


class TcpProxy(Closing):
    """Listens on a port of loopback and passes everything on to a server, until told otherwise.

    - `delay_s`: answers of the server arrive this much later.
    - `cut()`: every connection is closed, and new ones are refused until `heal()`.
    - `freeze()`: connections stay open, new ones are accepted, and nothing arrives in either direction until
      `heal()`: to both sides, the other one seems to hang (a half-open connection).
    - `strand()`: nothing arrives any more on the connections that are open, though they stay open; new ones work. So it
      is when a firewall or a load balancer has forgotten them.

        with TcpProxy(server.port) as proxy:
            stream = connect(f"redis://{proxy.address}")
            proxy.cut()
    """

    def __init__(self, server_port: int, server_host: str = LOOPBACK) -> None:
        self.server = (server_host, server_port)
        """The server's address. It may change; open connections stay where they are."""
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        """How many connections were accepted so far."""
        self._delay_s = 0.0
        self._is_cut = False
        self._is_frozen = False
        self._is_closed = False
        self._stranded = 0
        """Connections with a smaller number are stranded."""
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="tcp-proxy", daemon=True).start()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def delay_s(self) -> float:
        return self._delay_s

    @delay_s.setter
    def delay_s(self, delay_s: float) -> None:
        """Without a delay, answers that are held back arrive at once."""
        with self._changed:
            self._delay_s = delay_s
            self._changed.notify_all()

    def cut(self) -> None:
        """Close every connection, and refuse new ones until `heal`."""
        with self._changed:
            self._is_cut = True
            self._is_frozen = False
            self._stranded = 0
            self._close_all()

    def freeze(self) -> None:
        """Pass nothing on, in either direction, until `heal` or `cut`."""
        with self._changed:
            self._is_frozen = True

    def strand(self) -> None:
        """Pass nothing on any more on the connections that are open now, which may be frozen; new ones work."""
        with self._changed:
            self._is_frozen = False
            self._stranded = self.connections
            self._changed.notify_all()

    def heal(self) -> None:
        """Pass everything on again, except on stranded connections. What was sent to a frozen one arrives now."""
        with self._changed:
            self._is_cut = self._is_frozen = False
            self._delay_s = 0.0
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._close_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _close_all(self) -> None:
        """The caller holds `_changed`."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # the other side has closed it already
                each.shutdown(socket.SHUT_RDWR)
        self._changed.notify_all()

    def _accept(self) -> None:
        while True:  # ends with the listener
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="tcp-proxy-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        with self._changed:
            number = self.connections
            self.connections += 1
            self._sockets.add(client)
            self._changed.wait_for(lambda: not self._is_held(number))
            refused = self._is_cut or self._is_closed
        server = None if refused else self._connect()
        if server is None:
            self._forget(client)
            return
        with self._changed:
            self._sockets.add(server)
            if self._is_cut or self._is_closed:  # since the connection was made
                self._close_all()
        ways = [
            threading.Thread(target=self._pass_on, args=way, name="tcp-proxy-way", daemon=True)
            for way in ((number, client, server, False), (number, server, client, True))
        ]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        self._forget(client, server)

    def _connect(self) -> socket.socket | None:
        try:
            server = socket.create_connection(self.server, _CONNECT_TIMEOUT_S)
        except OSError:
            return None
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return server

    def _forget(self, *sockets: socket.socket) -> None:
        with self._changed:
            self._sockets.difference_update(sockets)
        for each in sockets:
            each.close()

    def _is_held(self, number: int) -> bool:
        """Whether nothing is passed on for this connection. The caller holds `_changed`."""
        return (self._is_frozen or number < self._stranded) and not self._is_closed

    def _pass_on(self, number: int, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        """Read in this thread and write in another, so that delayed chunks do not wait for each other."""
        held: queue.Queue[tuple[float, bytes]] = queue.Queue(_CHUNKS_HELD)
        writer = threading.Thread(target=self._write, args=(number, target, held), name="tcp-proxy-write", daemon=True)
        writer.start()
        data = b"-"
        while data:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            held.put((time.monotonic() + self._delay_s if is_answer else 0.0, data))
        writer.join()

    def _write(self, number: int, target: socket.socket, held: queue.Queue[tuple[float, bytes]]) -> None:
        is_open = True
        while True:  # ends when the source does
            due_s, data = held.get()
            with self._changed:
                self._changed.wait_for(lambda: not self._delay_s, max(0.0, due_s - time.monotonic()))
                self._changed.wait_for(lambda: not self._is_held(number))
            try:
                if is_open and data:
                    target.sendall(data)
            except OSError:
                is_open = False
            if not data:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
