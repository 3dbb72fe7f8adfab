"""`open_udp`, and the channels it opens."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from penstock.abc import Feature, Features
from penstock.channels.datagram_socket import ResolvedAddress, channel_name, resolve, resolve_target
from penstock.channels.socket_channel import SocketChannel
from penstock.channels.udp.ordering import UdpCounts
from penstock.channels.udp.raw import RawReceiver, RawSender
from penstock.channels.udp.receiving import UdpReceiver
from penstock.channels.udp.sending import UdpSender
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import ConfigError, UrlError
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.url import Host

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
        """What the listening end has seen."""
        return UdpCounts() if self.receiver is None else self.receiver.counts

    @property
    def repeated(self) -> int:
        """How many packets the sending end has sent again."""
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
    """What can be known before the address is used."""
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
