"""What the tests of UDP channels share: numbered records, and a sender that makes packets one by one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.channels.udp import UdpChannel
from penstock.channels.udp.packets import DATA, HEARTBEAT, Packet, PacketCodec, encode_records
from penstock.model import NewRecord, Record
from penstock.typing import Setting

LOOPBACK: Final = "127.0.0.1"
GROUP: Final = "239.255.77.1"
QUICK: Final = "linger_s=0.1"
SECRET: Final = "a-secret-of-the-tests"
WAIT_S: Final = 30.0


def free_port() -> int:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def listening(url: str, **options: Setting) -> UdpChannel:
    """A channel that has begun to listen."""
    channel = open_channel(url, **options)
    assert isinstance(channel, UdpChannel)
    channel.listen(1, 0.0)
    return channel


def numbered(numbers: Sequence[int], padding: int = 100) -> list[NewRecord]:
    return [NewRecord("udp", b"%d %b" % (number, b"x" * padding)) for number in numbers]


def numbers_of(records: Sequence[Record]) -> list[int]:
    return [int((record.value or b"").split(b" ")[0]) for record in records]


def receive(channel: Channel, count: int) -> list[int]:
    """The numbers of so many records."""
    numbers: list[int] = []
    deadline_s = time.monotonic() + 2 * WAIT_S
    while len(numbers) < count:
        assert time.monotonic() < deadline_s, f"{len(numbers)} of {count} came: {channel.counts}"  # type: ignore[attr-defined]
        numbers += numbers_of(channel.listen(1_000, 0.5))
    return numbers


def receive_until(channel: Channel, last: int) -> list[int]:
    """The numbers of all records up to the one with this number."""
    numbers: list[int] = []
    while last not in numbers:
        numbers += receive(channel, 1)
    return numbers


def in_background(function: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def send_all(channel: Channel, count: int, at_once: int = 500) -> None:
    for start in range(0, count, at_once):
        channel.send(numbered(range(start, min(count, start + at_once))))


class HandMadeSender:
    """Makes packets one by one, and answers only what a test wants it to."""

    def __init__(self, port: int, session: int = 7) -> None:
        self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.socket.bind((LOOPBACK, 0))
        self.socket.settimeout(WAIT_S)
        self.codec = PacketCodec()
        self.session = session
        self.target = (LOOPBACK, port)

    def data(self, number: int, record: int | None = None, age_ms: int = 0) -> bytes:
        """A packet with one record of the same number."""
        record = number if record is None else record
        payload = encode_records(numbered([record], 1))
        return self.codec.encode(DATA, self.session, number, record, count=1, age_ms=age_ms, payload=payload)

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.socket.sendto(packet, self.target)

    def heartbeat(self, number: int, record: int) -> None:
        self.send(self.codec.encode(HEARTBEAT, self.session, number, record))

    def request(self) -> Packet:
        """The next request of the receiver."""
        return self.codec.decode(self.socket.recv(65536))

    def close(self) -> None:
        self.socket.close()
