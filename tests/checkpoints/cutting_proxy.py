"""A proxy in front of a server that cuts the connection at a commit: before the server hears of it, or after."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

COMMIT: Final = b"COMMIT"
ANSWER_TIMEOUT_S: Final = 20.0


class CuttingProxy:
    """Passes everything on, until told to cut. `passes_on`: the server gets the commit, and its answer is lost."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: bool | None = None
        self._refuses_then = False
        self.cuts = 0
        self._answered = threading.Event()
        """The server has answered the commit: it is done."""
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def cut_next_commit(self, passes_on: bool, refuses_then: bool = False) -> None:
        self._refuses_then = refuses_then
        self._cut = passes_on

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:  # ends with the listener
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.cuts and self._refuses_then:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets += [client, server]
            for way in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_to_server: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if not is_to_server and self.cuts:
                    self._answered.set()
                if is_to_server and self._cut is not None and COMMIT in data:
                    passes_on, self._cut = self._cut, None
                    self.cuts += 1
                    source.shutdown(socket.SHUT_RDWR)
                    if passes_on:
                        target.sendall(data)
                        self._answered.wait(ANSWER_TIMEOUT_S)
                    break
                target.sendall(data)
        except OSError:
            pass  # the other way was cut, or the test is over
        for each in (source, target):
            with contextlib.suppress(OSError):  # it was cut already
                each.shutdown(socket.SHUT_RDWR)
