"""`open_udp`, and the channels it opens."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.abc import Feature, Features
from penstock.channels.datagram_socket import ResolvedAddress, channel_name, resolve
from penstock.channels.receive_buffer import ReceiveBuffer
from penstock.channels.udp.ordering import UdpCounts
from penstock.channels.udp.raw import RawReceiver, RawSender
from penstock.channels.udp.receiving import UdpReceiver
from penstock.channels.udp.sending import UdpSender
from penstock.channels.udp.settings import UdpSettings
from penstock.errors import ConfigError, PenstockError, UrlError
from penstock.model import NewRecord, Record
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
    return (RawUdpChannel if settings.raw else UdpChannel)(where, settings)


class _Receiver(Protocol):
    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def tell_room(self) -> None: ...

    def close(self) -> None: ...


class _Sender(Protocol):
    def send(self, records: Sequence[NewRecord]) -> None: ...

    def close(self) -> None: ...


R = TypeVar("R", bound=_Receiver)
S = TypeVar("S", bound=_Sender)


class _Ends(Generic[R, S]):
    """The two ends of a channel, each opened when it is first used."""

    def __init__(
        self,
        url: BackendUrl,
        settings: UdpSettings,
        receiver: Callable[[ResolvedAddress, UdpSettings, ReceiveBuffer], R],
        sender: Callable[[ResolvedAddress, ResolvedAddress | None, UdpSettings], S],
    ) -> None:
        self._host = url.host
        self._settings = settings
        self.name = channel_name(url)
        self.buffer = ReceiveBuffer(self.name, settings.buffer)
        self._new_receiver = receiver
        self._new_sender = sender
        self.receiver: R | None = None
        self.sender: S | None = None
        self._lock = threading.Lock()

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        receiver = self.receiver
        if receiver is None or not receiver.is_running:
            receiver = self._start_receiver()
        records = self.buffer.take(limit, wait_s)
        receiver.tell_room()
        return records

    def _start_receiver(self) -> R:
        with self._lock:
            self.buffer.check_open()
            if self.receiver is None:
                self.receiver = self._new_receiver(resolve(self._host), self._settings, self.buffer)
            self.receiver.start()
            return self.receiver

    def send(self, records: Sequence[NewRecord]) -> None:
        self.buffer.check_open()
        if not records:
            return
        if self.sender is None:
            self._open_sender()
        assert self.sender is not None
        try:
            self.sender.send(records)
        except PenstockError:
            self.buffer.check_open()  # closed meanwhile
            raise

    def _open_sender(self) -> None:
        with self._lock:
            self.buffer.check_open()
            if self.sender is None:
                target = resolve(self._host)
                if target.is_any:
                    raise ConfigError(f"{self._host} stands for all addresses of a machine: name the one to send to")
                source = None if self._settings.source is None else resolve(_source_host(self._settings.source))
                self.sender = self._new_sender(target, source, self._settings)

    def close(self) -> None:
        with self._lock:
            self.buffer.close()
            receiver, sender = self.receiver, self.sender
        if receiver is not None:
            receiver.close()
        if sender is not None:
            sender.close()


class UdpChannel:
    """`abc.Channel` and `abc.CountingLosses` on UDP: packets are numbered, put in order and recovered."""

    def __init__(self, url: BackendUrl, settings: UdpSettings) -> None:
        _check(url.host, settings)
        self._ends: _Ends[UdpReceiver, UdpSender] = _Ends(url, settings, UdpReceiver, UdpSender)

    @property
    def name(self) -> str:
        return self._ends.name

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def lost(self) -> int:
        return self.counts.lost

    @property
    def counts(self) -> UdpCounts:
        """What the listening end has seen."""
        return UdpCounts() if self._ends.receiver is None else self._ends.receiver.counts

    @property
    def repeated(self) -> int:
        """How many packets the sending end has sent again."""
        return 0 if self._ends.sender is None else self._ends.sender.repeated

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return self._ends.listen(limit, wait_s)

    def send(self, records: Sequence[NewRecord]) -> None:
        self._ends.send(records)

    def close(self) -> None:
        self._ends.close()


class RawUdpChannel:
    """`abc.Channel` on datagrams as they are."""

    def __init__(self, url: BackendUrl, settings: UdpSettings) -> None:
        _check(url.host, settings)
        self._ends: _Ends[RawReceiver, RawSender] = _Ends(url, settings, RawReceiver, RawSender)

    @property
    def name(self) -> str:
        return self._ends.name

    @property
    def features(self) -> Features:
        return RAW_FEATURES

    @property
    def dropped(self) -> int:
        """Datagrams that reached this machine and were dropped. Those that the network lost are not known."""
        return 0 if self._ends.receiver is None else self._ends.receiver.dropped

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]:
        return self._ends.listen(limit, wait_s)

    def send(self, records: Sequence[NewRecord]) -> None:
        self._ends.send(records)

    def close(self) -> None:
        self._ends.close()


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


def _source_host(text: str) -> Host:
    """`HOST:PORT`, or `HOST` for any port."""
    try:
        return parse_backend_url(f"udp://{text}", 0).host
    except UrlError as error:
        raise ConfigError(f"source={text!r} must be HOST:PORT") from error
