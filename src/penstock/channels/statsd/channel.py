"""`open_statsd`, and the channel it opens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.abc import Features
from penstock.channels.datagram_socket import Address, channel_name, open_sending, resolve, resolve_target, unavailable
from penstock.channels.socket_channel import SocketChannel
from penstock.channels.statsd.lines import BadLineError, format_line, metric_of, parse_line
from penstock.channels.statsd.receiving import StatsdCounts, StatsdReceiver
from penstock.channels.statsd.settings import StatsdSettings
from penstock.errors import BrokerUnavailableError, DeliveryError, RecordTooLargeError, UrlError
from penstock.model import NewRecord
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.url import Host


class StatsdSender:
    """Sends metrics by UDP, several in a datagram, or by TCP. Any thread may send."""

    def __init__(self, host: Host, settings: StatsdSettings) -> None:
        self._host = host
        self._settings = settings
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._address: Address = ()
        """Where UDP datagrams go."""

    def send(self, records: Sequence[NewRecord]) -> None:
        lines = [self._line(record) for record in records]
        with self._lock:
            if self._settings.transport == "udp":
                for datagram in self._datagrams(lines):
                    self._transmit(datagram)
            else:
                self._transmit(b"".join(line + b"\n" for line in lines))

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _line(self, record: NewRecord) -> bytes:
        value = record.value or b""
        try:
            if value.lstrip().startswith(b"{"):
                line = format_line(metric_of(value))
            else:
                line = value.strip()
                parse_line(line)
        except BadLineError as error:
            raise DeliveryError(
                f"{value[:80]!r} is not a metric for statsd at {self._host}: {error}. Send a line, b'name:1|c', or the "
                'JSON of one, {"name": "name", "kind": "counter", "value": 1}'
            ) from error
        if self._settings.transport == "udp" and len(line) > self._settings.datagram_bytes:
            raise RecordTooLargeError(
                f"a metric of {len(line)} bytes for statsd at {self._host} does not fit into a datagram: shorten its "
                f"name or tags, or raise datagram_bytes={self._settings.datagram_bytes}"
            )
        return line

    def _datagrams(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        group: list[bytes] = []
        size = 0
        for line in lines:
            if group and size + 1 + len(line) > self._settings.datagram_bytes:
                yield b"\n".join(group)
                group, size = [], 0
            size += len(line) + bool(group)
            group.append(line)
        if group:
            yield b"\n".join(group)

    def _transmit(self, data: bytes) -> None:
        if self._socket is not None and self._settings.transport == "tcp" and self._is_closed_by_receiver():
            self._disconnect()
        if self._socket is None:
            self._socket = self._connected()
        try:
            if self._settings.transport == "udp":
                self._socket.sendto(data, self._address)
            else:
                self._socket.sendall(data)
        except OSError as error:
            self._disconnect()
            raise unavailable(error, f"cannot send to statsd at {self._host}") from error

    def _is_closed_by_receiver(self) -> bool:
        assert self._socket is not None
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1024) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(self._settings.connect_timeout_s)

    def _connected(self) -> socket.socket:
        if self._settings.transport == "udp":
            target = resolve_target(self._host)
            self._address = target.address
            return open_sending(target, None, None, None)
        try:
            connected = socket.create_connection((self._host.name, self._host.port), self._settings.connect_timeout_s)
        except OSError as error:
            raise BrokerUnavailableError(
                f"statsd at {self._host} cannot be reached by TCP: {error}. Is it running, and does it accept TCP?"
            ) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


FEATURES: Final[Features] = frozenset()
"""The key of a record that arrives is the name of its metric; one that is sent has no place in a line."""
PORT: Final = 8125


def open_statsd(url: str, options: Mapping[str, Any]) -> StatsdChannel:
    """`statsd:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url, PORT)
    if len(where.hosts) != 1 or where.user is not None:
        raise UrlError(f"{where.shown!r} is not statsd://HOST:PORT, with /NAME if you like")
    return StatsdChannel(where, settings_of(where, StatsdSettings, options))


class StatsdChannel(SocketChannel[StatsdReceiver, StatsdSender]):
    """`abc.Channel` for metrics. Best effort: it has no answers, and does not know what the network lost."""

    def __init__(self, url: BackendUrl, settings: StatsdSettings) -> None:
        super().__init__(
            channel_name(url),
            settings.buffer,
            lambda buffer: StatsdReceiver(resolve(url.host), settings, buffer),
            lambda: StatsdSender(url.host, settings),
        )

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def counts(self) -> StatsdCounts:
        """The counters of the listening end."""
        return StatsdCounts() if self.receiver is None else self.receiver.counts

    @property
    def dropped(self) -> int:
        """Datagrams that the system dropped after they reached this machine, and records that this channel dropped."""
        return 0 if self.receiver is None else self.receiver.dropped
