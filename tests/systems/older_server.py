"""A real server that seems to have another version: a relay replaces what it says about itself."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 16


@contextlib.contextmanager
def relay_that_replaces(port: int, said: bytes, instead: bytes) -> Iterator[str]:
    """The address of a relay to a server on loopback. Both texts have the same length, so that frames stay whole."""
    assert len(said) == len(instead), f"{said!r} and {instead!r} must have the same length"
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def accept() -> None:
        while True:  # ends: with the listener
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port), 10)
            except OSError:
                return
            server.settimeout(None)
            opened.extend((client, server))
            for source, target, replaces in ((client, server, False), (server, client, True)):
                threading.Thread(target=pass_on, args=(source, target, replaces), daemon=True).start()

    def pass_on(source: socket.socket, target: socket.socket, replaces: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                target.sendall(data.replace(said, instead) if replaces else data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in opened:
            each.close()
