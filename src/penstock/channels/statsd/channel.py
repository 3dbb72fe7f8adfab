"""`open_statsd`, and the channel it opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.abc import Features
from penstock.channels.datagram_socket import channel_name, resolve
from penstock.channels.socket_channel import SocketChannel
from penstock.channels.statsd.receiving import StatsdCounts, StatsdReceiver
from penstock.channels.statsd.sending import StatsdSender
from penstock.channels.statsd.settings import StatsdSettings
from penstock.errors import UrlError
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of

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
        """What the listening end has seen."""
        return StatsdCounts() if self.receiver is None else self.receiver.counts

    @property
    def dropped(self) -> int:
        """What reached this machine and was dropped: datagrams by the system, records by this channel."""
        return 0 if self.receiver is None else self.receiver.dropped
