"""`open_statsd`, and the channel it opens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.abc import Features
from penstock.channels.datagram_socket import channel_name, resolve
from penstock.channels.receive_buffer import ReceiveBuffer
from penstock.channels.statsd.receiving import StatsdCounts, StatsdReceiver
from penstock.channels.statsd.sending import StatsdSender
from penstock.channels.statsd.settings import StatsdSettings
from penstock.errors import PenstockError, UrlError
from penstock.model import NewRecord, Record
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


class StatsdChannel:
    """`abc.Channel` for metrics. Best effort: it has no answers, and does not know what the network lost."""

    def __init__(self, url: BackendUrl, settings: StatsdSettings) -> None:
        self._host = url.host
        self._settings = settings
        self._name = channel_name(url)
        self._buffer = ReceiveBuffer(self._name, settings.buffer)
        self._receiver: StatsdReceiver | None = None
        self._sender = StatsdSender(url.host, settings)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def counts(self) -> StatsdCounts:
        """What the listening end has seen."""
        return StatsdCounts() if self._receiver is None else self._receiver.counts

    @property
    def dropped(self) -> int:
        """What reached this machine and was dropped: datagrams by the system, records by this channel."""
        return 0 if self._receiver is None else self._receiver.dropped

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        receiver = self._receiver
        if receiver is None or not receiver.is_running:
            receiver = self._start_receiver()
        records = self._buffer.take(limit, wait_s)
        receiver.tell_room()
        return records

    def _start_receiver(self) -> StatsdReceiver:
        with self._lock:
            self._buffer.check_open()
            if self._receiver is None:
                self._receiver = StatsdReceiver(resolve(self._host), self._settings, self._buffer)
            self._receiver.start()
            return self._receiver

    def send(self, records: Sequence[NewRecord]) -> None:
        self._buffer.check_open()
        if records:
            try:
                self._sender.send(records)
            except PenstockError:
                self._buffer.check_open()  # closed meanwhile
                raise

    def close(self) -> None:
        with self._lock:
            self._buffer.close()
            receiver = self._receiver
        if receiver is not None:
            receiver.close()
        self._sender.close()
