"""`StatsdReceiver`: the listening end, by UDP or TCP. A thread reads lines and turns them into records."""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.channels.datagram_socket import ResolvedAddress, check_listening, open_listening, unavailable
from penstock.channels.rare_warnings import RareWarnings
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.socket_channel import SocketReceiver
from penstock.channels.statsd.aggregates import Aggregates
from penstock.channels.statsd.lines import LONGEST_LINE_BYTES, BadLineError, Metric, parse_line
from penstock.channels.statsd.settings import StatsdSettings

logger = logging.getLogger(__name__)

_DATAGRAMS_AT_ONCE: Final = 128
_CHUNK_BYTES: Final = 1 << 16
_LONGEST_WAIT_S: Final = 1.0
_ROOM_WAIT_S: Final = 0.01
_SHOWN_BYTES: Final = 80
_encoder: Final = msgspec.json.Encoder()


@dataclass(slots=True)
class StatsdCounts:
    """Counters since the start. One thread writes; readers may be slightly behind."""

    values: int = 0
    """Values of metrics that arrived."""
    bad_lines: int = 0
    """Lines that are not metrics."""
    left_out: int = 0
    """Values that could not be aggregated, as there were more than `max_series` metrics."""


class _Connection:
    """A sender by TCP, and the bytes that it has sent and that are not processed yet."""

    __slots__ = ("rest", "socket")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.rest = b""


class StatsdReceiver(SocketReceiver):
    """Receives metrics, or aggregates of them, into a buffer."""

    def __init__(self, address: ResolvedAddress, settings: StatsdSettings, buffer: ReceiveBuffer) -> None:
        super().__init__(address.shown, buffer)
        self.counts = StatsdCounts()
        self._address = address
        self._settings = settings
        self._aggregates = Aggregates(settings.percentages, settings.max_series) if settings.flush_s else None
        self._flush_s = 0.0
        """When the interval ends."""
        self._warnings = RareWarnings(logger, f"statsd {address.shown}")
        self._connections: set[_Connection] = set()
        self._waiting: set[_Connection] = set()
        """Connections that are not read until there is room."""

    @property
    def dropped(self) -> int:
        """Datagrams for which the socket's buffer had no room, where the system counts them, and records for which
        this channel had none."""
        return self.dropped_by_system.count + self.buffer.lost + self.counts.left_out

    def open_sockets(self) -> Mapping[socket.socket, Callable[[], None]]:
        self._connections.clear()
        self._waiting.clear()
        self._flush_s = time.monotonic() + self._settings.flush_s
        check_listening(self._address, None, allow="add insecure=true", insecure=self._settings.insecure)
        if self._settings.transport == "tcp":
            listener = _listen_for_connections(self._address)
            return {listener: functools.partial(self._accept, listener)}
        listener = open_listening(self._address, None, self._settings.socket_buffer_bytes)
        self.dropped_by_system.watch(listener)
        return {listener: functools.partial(self._read_datagrams, listener)}

    def step(self) -> float:
        wait_s = _LONGEST_WAIT_S
        if self._aggregates is not None:
            wait_s = self._flush_if_due(self._aggregates)
        for connection in list(self._waiting):
            self._resume(connection)
        self.waits_for_room = bool(self._waiting)
        return min(wait_s, _ROOM_WAIT_S) if self._waiting else wait_s

    def ended(self) -> None:
        super().ended()
        for connection in self._waiting:  # the thread does not watch these, and so does not close them
            connection.socket.close()

    def _flush_if_due(self, aggregates: Aggregates) -> float:
        """Flush the aggregates if the interval has ended. Returns the seconds until the next one ends."""
        now_s = time.monotonic()
        if now_s >= self._flush_s:
            now_ms = time.time_ns() // 1_000_000
            flushed = aggregates.flush(self._settings.flush_s)
            self.buffer.put_all([(value, name.encode(), (), now_ms) for name, value in flushed])
            late_s = (now_s - self._flush_s) % self._settings.flush_s
            self._flush_s = now_s - late_s + self._settings.flush_s
        return min(_LONGEST_WAIT_S, max(0.0, self._flush_s - now_s))

    def _read_datagrams(self, listener: socket.socket) -> None:
        now_ms = time.time_ns() // 1_000_000
        arrived: list[Arrived] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                data = listener.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            for line in data.split(b"\n"):
                if line:
                    arrived += self._arrived(line, now_ms)
        if arrived:
            self.buffer.put_all(arrived)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, address = listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again
            return
        if len(self._connections) >= self._settings.max_connections:
            self._warnings.warn("connections", "the connection of %s is refused: raise max_connections", address[0])
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = _Connection(accepted)
        self._connections.add(connection)
        self.thread.watch(accepted, functools.partial(self._read_connection, connection))

    def _read_connection(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            logger.debug("statsd %s: a connection ended: %s", self.shown, error)
            data = b""
        if not data:
            connection.rest += b"\n" if connection.rest else b""  # a last line may have no end
        connection.rest += data
        has_room = self._take_lines(connection)
        if not data and has_room:
            self._disconnect(connection)
        elif not has_room:
            self.thread.forget(connection.socket)
            self._waiting.add(connection)

    def _resume(self, connection: _Connection) -> None:
        """Read a connection again, if there was room for what it had sent."""
        if self._take_lines(connection) and connection in self._connections:
            self._waiting.discard(connection)
            self.thread.watch(connection.socket, functools.partial(self._read_connection, connection))

    def _take_lines(self, connection: _Connection) -> bool:
        """Process the whole lines that a connection has sent. False if there is no room for the next one."""
        now_ms = time.time_ns() // 1_000_000
        start = 0
        data = connection.rest
        while (end := data.find(b"\n", start)) >= 0:
            line = data[start:end].rstrip(b"\r")
            if line:
                if not self.buffer.wait_for_room(0.0) and not self.closing.is_set():
                    connection.rest = data[start:]
                    return False
                self.buffer.put_all(self._arrived(line, now_ms))
            start = end + 1
        connection.rest = data[start:]
        if len(connection.rest) > LONGEST_LINE_BYTES:
            self._bad_line(connection.rest, "it has no end")
            self._disconnect(connection)
        return True

    def _disconnect(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            if connection in self._waiting:
                self._waiting.discard(connection)
            else:
                self.thread.forget(connection.socket)
            connection.socket.close()

    def _arrived(self, line: bytes, now_ms: int) -> list[Arrived]:
        """The records of a line; none if it is bad, or only aggregated."""
        try:
            metrics, time_ms = parse_line(line)
        except BadLineError as error:
            self._bad_line(line, str(error))
            return []
        self.counts.values += len(metrics)
        if self._aggregates is None:
            stamp_ms = now_ms if time_ms is None else time_ms
            return [(_encoder.encode(each), each.name.encode(), (), stamp_ms) for each in metrics]
        for each in metrics:
            self._aggregate(self._aggregates, each)
        return []

    def _aggregate(self, aggregates: Aggregates, metric: Metric) -> None:
        if not aggregates.add(metric):
            self.counts.left_out += 1
            self._warnings.warn(
                "series",
                "a value of %r is dropped, as there are %d metrics in this interval already: raise max_series",
                metric.name,
                self._settings.max_series,
            )

    def _bad_line(self, line: bytes, reason: str) -> None:
        self.counts.bad_lines += 1
        self._warnings.warn("bad", "the line %r is ignored: %s", line[:_SHOWN_BYTES], reason)


def _listen_for_connections(endpoint: ResolvedAddress) -> socket.socket:
    listener = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(endpoint.address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise unavailable(error, f"cannot listen at {endpoint.shown}") from error
    return listener
