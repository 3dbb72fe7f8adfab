"""`TcpProxy` breaks the network as its docstring says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.testing import TcpProxy
from tests.consuming.eventually import wait_until

BRIEF_S = 0.2
WAIT_S = 20.0


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """In front of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1000):  # ends with the client
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:  # ends with the listener
                threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with TcpProxy(listener.getsockname()[1]) as proxy:
        yield proxy
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@contextlib.contextmanager
def connected(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), WAIT_S) as client:
        yield client


def answer(client: socket.socket, said: bytes, wait_s: float = WAIT_S) -> bytes | None:
    """What comes back; None when nothing does."""
    client.settimeout(wait_s)
    client.sendall(said)
    try:
        return client.recv(1000)
    except TimeoutError:
        return None


def test_what_was_sent_to_a_frozen_connection_arrives_when_it_is_healed(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert answer(client, b"a") == b"a"
        proxy.freeze()
        assert answer(client, b"b", BRIEF_S) is None
        proxy.heal()
        client.settimeout(WAIT_S)
        assert client.recv(1000) == b"b"


def test_a_stranded_connection_stays_open_and_silent_for_good_and_new_ones_work(proxy: TcpProxy) -> None:
    with connected(proxy) as old:
        assert answer(old, b"a") == b"a"
        proxy.freeze()
        with connected(proxy) as frozen:
            wait_until(lambda: proxy.connections == 2, WAIT_S)
            proxy.strand()
            with connected(proxy) as new:
                assert answer(new, b"b") == b"b"
                proxy.heal()
                assert answer(new, b"c") == b"c"
            assert answer(old, b"d", BRIEF_S) is None
            assert answer(frozen, b"e", BRIEF_S) is None
        assert proxy.connections == 3


def test_a_cut_closes_stranded_connections_too(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert answer(client, b"a") == b"a"
        proxy.strand()
        proxy.cut()
        client.settimeout(WAIT_S)
        assert client.recv(1000) == b"", "the connection is closed"
