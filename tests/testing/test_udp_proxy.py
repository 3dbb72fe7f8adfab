"""The network that loses, repeats and reorders datagrams."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing import UdpProxy
from tests.consuming.eventually import wait_until

WAIT_S = 20.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        opened.settimeout(WAIT_S)
        yield opened


def sent_through(server: socket.socket, count: int = 150, **faults: Any) -> tuple[UdpProxy, list[bytes]]:
    """What arrives of numbered datagrams that are sent one after the other."""
    with UdpProxy(server.getsockname()[1], **faults) as proxy, socket.socket(type=socket.SOCK_DGRAM) as client:
        for number in range(count):
            client.sendto(b"%d" % number, ("127.0.0.1", proxy.port))
            wait_until(lambda number=number: proxy.passed + proxy.lost + proxy.reordered > number)  # type: ignore[misc]
        client.sendto(b"end", ("127.0.0.1", proxy.port))
        proxy.heal()
        arrived = [server.recv(100)]
        while arrived[-1] != b"end":
            arrived.append(server.recv(100))
            client.sendto(b"end", ("127.0.0.1", proxy.port))
        return proxy, arrived


def test_a_good_network_passes_everything_on_in_order(server: socket.socket) -> None:
    proxy, arrived = sent_through(server)
    assert arrived == [*(b"%d" % number for number in range(150)), b"end"]
    assert (proxy.lost, proxy.duplicated, proxy.reordered) == (0, 0, 0)


def test_a_share_is_lost_and_the_seed_says_which(server: socket.socket) -> None:
    proxy, arrived = sent_through(server, seed=5, loss=0.2)
    assert 5 < proxy.lost < 80
    assert proxy.lost + len(set(arrived)) >= 150
    assert arrived == [number for number in (*(b"%d" % each for each in range(150)), b"end") if number in set(arrived)]


def test_a_share_arrives_twice(server: socket.socket) -> None:
    proxy, arrived = sent_through(server, seed=5, duplication=0.2)
    assert 5 < proxy.duplicated < 80
    assert len(arrived) - len(set(arrived)) == proxy.duplicated
    assert set(arrived) == {*(b"%d" % number for number in range(150)), b"end"}


def test_a_share_is_overtaken(server: socket.socket) -> None:
    proxy, arrived = sent_through(server, seed=5, reordering=0.2)
    numbers = [int(each) for each in arrived if each != b"end"]
    assert proxy.reordered > 5
    assert numbers != sorted(numbers)
    assert sorted(numbers) == list(range(150))


def test_answers_come_back_to_the_client_that_asked(server: socket.socket) -> None:
    with UdpProxy(server.getsockname()[1]) as proxy:
        clients = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(3)]
        for number, client in enumerate(clients):
            client.settimeout(WAIT_S)
            client.sendto(b"%d" % number, ("127.0.0.1", proxy.port))
            question, address = server.recvfrom(100)
            server.sendto(b"answer to " + question, address)
        assert [client.recv(100) for client in clients] == [b"answer to 0", b"answer to 1", b"answer to 2"]
        for client in clients:
            client.close()


def test_nothing_passes_a_network_that_is_cut(server: socket.socket) -> None:
    with UdpProxy(server.getsockname()[1]) as proxy, socket.socket(type=socket.SOCK_DGRAM) as client:
        proxy.cut()
        client.sendto(b"lost", ("127.0.0.1", proxy.port))
        wait_until(lambda: proxy.lost)
        proxy.heal()
        client.sendto(b"kept", ("127.0.0.1", proxy.port))
        assert server.recv(100) == b"kept"
