"""`RawUdpChannel`: each datagram is the value of a record, for packets of other programs. Best effort."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from penstock.channels.datagram_socket import (
    LARGEST_DATAGRAM_BYTES,
    ResolvedAddress,
    dropped_datagrams,
    open_listening,
    open_sending,
    unavailable,
)
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.socket_thread import SocketThread
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import RecordTooLargeError
from penstock.model import NewRecord

_DATAGRAMS_AT_ONCE: Final = 128
_WAIT_S: Final = 1.0
_STOP_S: Final = 10.0


class RawReceiver:
    """Fills a buffer with datagrams, from `start` to `close`. After an error of the network it can be started again."""

    def __init__(self, endpoint: ResolvedAddress, settings: UdpSettings, buffer: ReceiveBuffer) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._buffer = buffer
        self._closing = threading.Event()
        self._socket: socket.socket | None = None
        self._thread: SocketThread | None = None
        self._dropped_before = 0
        """By sockets that were closed after an error."""

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_running

    @property
    def dropped(self) -> int:
        """Datagrams that did not fit into the socket's buffer, where the system tells, or into `buffer`."""
        by_system = dropped_datagrams(self._socket) if self._socket is not None else None
        return self._dropped_before + (by_system or 0) + self._buffer.lost

    def start(self) -> None:
        """Open the socket. Raises BrokerUnavailableError or ConfigError."""
        self._socket = open_listening(self._endpoint, self._settings.interface, self._settings.socket_buffer_bytes)
        self._thread = SocketThread(f"penstock-udp-receiver-{self._endpoint.shown}", self._step, self._failed)
        self._thread.watch(self._socket, self._read)
        self._buffer.report(None)
        self._thread.start()

    def tell_room(self) -> None:
        """What had no room is lost."""

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.wake()
            self._thread.join(_STOP_S)

    def _step(self) -> float | None:
        if not self._closing.is_set():
            return _WAIT_S
        self._remember_dropped()
        return None

    def _read(self) -> None:
        assert self._socket is not None
        now_ms = time.time_ns() // 1_000_000
        arrived: list[Arrived] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                arrived.append((self._socket.recv(65536), None, (), now_ms))
            except BlockingIOError:
                break
        if arrived:
            self._buffer.put_all(arrived)

    def _failed(self, error: OSError) -> None:
        self._remember_dropped()
        self._buffer.report(unavailable(error, f"listening at {self._endpoint.shown} ended"))

    def _remember_dropped(self) -> None:
        if self._socket is not None:
            self._dropped_before += dropped_datagrams(self._socket) or 0
            self._socket = None


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
