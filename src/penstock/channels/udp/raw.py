"""Datagrams as they are: each is the value of a record, for packets of other programs. Best effort."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.channels.datagram_socket import (
    LARGEST_DATAGRAM_BYTES,
    ResolvedAddress,
    open_listening,
    open_sending,
    unavailable,
)
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.socket_channel import SocketReceiver
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import RecordTooLargeError
from penstock.model import NewRecord

_DATAGRAMS_AT_ONCE: Final = 128
_WAIT_S: Final = 1.0


class RawReceiver(SocketReceiver):
    """Fills a buffer with datagrams."""

    def __init__(self, address: ResolvedAddress, settings: UdpSettings, buffer: ReceiveBuffer) -> None:
        super().__init__(address.shown, buffer)
        self._address = address
        self._settings = settings

    @property
    def dropped(self) -> int:
        """Datagrams that did not fit into the socket's buffer, where the system tells, or into `buffer`."""
        return self.dropped_by_system.count + self.buffer.lost

    def open_sockets(self) -> Mapping[socket.socket, Callable[[], None]]:
        self._settings.check_listening(self._address)
        listener = open_listening(self._address, self._settings.interface, self._settings.socket_buffer_bytes)
        self.dropped_by_system.watch(listener)
        return {listener: functools.partial(self._read, listener)}

    def step(self) -> float:
        return _WAIT_S

    def _read(self, listener: socket.socket) -> None:
        now_ms = time.time_ns() // 1_000_000
        arrived: list[Arrived] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                arrived.append((listener.recv(65536), None, (), now_ms))
            except BlockingIOError:
                break
        if arrived:
            self.buffer.put_all(arrived)


class RawSender:
    """Sends each value as a datagram. Any thread may send."""

    def __init__(self, target: ResolvedAddress, source: ResolvedAddress | None, settings: UdpSettings) -> None:
        self._target = target
        ttl = settings.ttl if target.is_multicast else None
        self._socket = open_sending(target, settings.interface, ttl, source)

    def send(self, records: Sequence[NewRecord]) -> None:
        largest = max(len(record.value or b"") for record in records)
        if largest > LARGEST_DATAGRAM_BYTES:
            raise RecordTooLargeError(
                f"a value of {largest} bytes does not fit into a datagram to {self._target.shown}, which has at most "
                f"{LARGEST_DATAGRAM_BYTES}: send it without raw=true, with max_record_bytes"
            )
        for record in records:
            try:
                self._socket.sendto(record.value or b"", self._target.address)
            except OSError as error:
                raise unavailable(error, f"cannot send to {self._target.shown}") from error

    def close(self) -> None:
        self._socket.close()
