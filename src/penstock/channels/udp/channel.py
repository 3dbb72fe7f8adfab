"""`open_udp`, and the channels it opens."""

from __future__ import annotations

import functools
import ipaddress
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.channels.datagram_socket import (
    LARGEST_DATAGRAM_BYTES,
    ResolvedAddress,
    channel_name,
    open_listening,
    open_sending,
    resolve,
    resolve_target,
    unavailable,
)
from penstock.channels.receive_buffer import Arrived, ReceiveBuffer
from penstock.channels.socket_channel import SocketChannel, SocketReceiver
from penstock.channels.udp.ordering import UdpCounts
from penstock.channels.udp.receiving import UdpReceiver
from penstock.channels.udp.sending import UdpSender
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import ConfigError, RecordTooLargeError, UrlError
from penstock.model import NewRecord
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.url import Host

_DATAGRAMS_AT_ONCE: Final = 128
_WAIT_S: Final = 1.0


class RawReceiver(SocketReceiver):
    """Receives datagrams into a buffer."""

    def __init__(self, address: ResolvedAddress, settings: UdpSettings, buffer: ReceiveBuffer) -> None:
        super().__init__(address.shown, buffer)
        self._address = address
        self._settings = settings

    @property
    def dropped(self) -> int:
        """Datagrams for which the socket's buffer had no room, where the system counts them, or the channel's
        buffer."""
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


FEATURES: Final[Features] = frozenset({Feature.KEYS, Feature.HEADERS, Feature.LOSS_COUNT})
RAW_FEATURES: Final[Features] = frozenset()


def open_udp(url: str, options: Mapping[str, Any]) -> UdpChannel | RawUdpChannel:
    """`udp:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url)
    if len(where.hosts) != 1 or where.user is not None:
        raise UrlError(f"{where.shown!r} is not udp://HOST:PORT or udp://GROUP:PORT, with /NAME if you like")
    settings = settings_of(where, UdpSettings, options)
    _check(where.host, settings)
    return (RawUdpChannel if settings.raw else UdpChannel)(where, settings)


class UdpChannel(SocketChannel[UdpReceiver, UdpSender]):
    """`abc.Channel` and `abc.CountingLosses` on UDP: packets are numbered, put in order and recovered."""

    def __init__(self, url: BackendUrl, settings: UdpSettings) -> None:
        super().__init__(
            channel_name(url),
            settings.buffer,
            lambda buffer: UdpReceiver(resolve(url.host), settings, buffer),
            lambda: UdpSender(resolve_target(url.host), _source(settings), settings),
        )

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def lost(self) -> int:
        return self.counts.lost

    @property
    def counts(self) -> UdpCounts:
        """The counters of the listening end."""
        return UdpCounts() if self.receiver is None else self.receiver.counts

    @property
    def repeated(self) -> int:
        """How many packets were sent again."""
        return 0 if self.sender is None else self.sender.repeated


class RawUdpChannel(SocketChannel[RawReceiver, RawSender]):
    """`abc.Channel` on datagrams as they are."""

    def __init__(self, url: BackendUrl, settings: UdpSettings) -> None:
        super().__init__(
            channel_name(url),
            settings.buffer,
            lambda buffer: RawReceiver(resolve(url.host), settings, buffer),
            lambda: RawSender(resolve_target(url.host), _source(settings), settings),
        )

    @property
    def features(self) -> Features:
        return RAW_FEATURES

    @property
    def dropped(self) -> int:
        """Datagrams that reached this machine and were dropped. Those that the network lost are not known."""
        return 0 if self.receiver is None else self.receiver.dropped


def _check(host: Host, settings: UdpSettings) -> None:
    """Check what can be checked before the address is used."""
    settings.secrets()
    if settings.source is not None:
        _source_host(settings.source)
    try:
        address = ipaddress.ip_address(host.name)
    except ValueError:  # a name, which is looked up when it is needed
        return
    if settings.interface is not None and not address.is_multicast:
        raise ConfigError(f"interface={settings.interface!r}: {host} is not a multicast group")


def _source(settings: UdpSettings) -> ResolvedAddress | None:
    return None if settings.source is None else resolve(_source_host(settings.source))


def _source_host(text: str) -> Host:
    """`HOST:PORT`, or `HOST` for any port."""
    try:
        return parse_backend_url(f"udp://{text}", 0).host
    except UrlError as error:
        raise ConfigError(f"source={text!r} must be HOST:PORT") from error
