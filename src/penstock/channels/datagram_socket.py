"""UDP sockets, to listen at an address or to a multicast group and to send, and how many datagrams were dropped."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, ConfigError, UrlError
from penstock.model import is_topic_name
from penstock.model.addresses import check_exposure
from penstock.streams.backend_url import BackendUrl
from penstock.streams.url import Host

LARGEST_DATAGRAM_BYTES: Final = 65_507
"""The largest payload of a datagram over IPv4; over IPv6, it is a little more."""
Address = tuple[Any, ...]
"""An address of the socket module: host and port, and two more numbers for IPv6."""

_SEND_TIMEOUT_S: Final = 10
_IP_MULTICAST_ALL: Final = 49
_IPV6_MULTICAST_ALL: Final = 29
_SO_RCVBUFFORCE: Final = 33
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")
_NOT_OURS: Final = (errno.EADDRNOTAVAIL, errno.EACCES, errno.ENODEV, errno.ENXIO)
"""Another attempt would fail in the same way."""


@dataclass(frozen=True, slots=True)
class ResolvedAddress:
    """A resolved address."""

    family: int
    address: Address
    shown: str

    @property
    def is_multicast(self) -> bool:
        return ipaddress.ip_address(self.address[0].partition("%")[0]).is_multicast

    @property
    def is_any(self) -> bool:
        """Whether it is the wildcard address: all addresses of this machine."""
        return ipaddress.ip_address(self.address[0].partition("%")[0]).is_unspecified


def channel_name(url: BackendUrl) -> str:
    """The last part of the URL's path, or its scheme and address, in characters that the name of a topic may have."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", url.path.rstrip("/").rpartition("/")[2] or f"{url.scheme}-{url.host}")
    if not is_topic_name(name):
        raise UrlError(f"{url.shown!r} ends with {name!r}, which cannot be the name of a channel, as of a topic")
    return name


def resolve(host: Host, kind: int = socket.SOCK_DGRAM) -> ResolvedAddress:
    """The address of a host. BrokerUnavailableError if the name cannot be resolved now."""
    try:
        found = socket.getaddrinfo(host.name, host.port, type=kind)
    except (OSError, UnicodeError) as error:
        raise BrokerUnavailableError(f"the address {host} cannot be resolved: {error}") from error
    family, _, _, _, address = found[0]
    return ResolvedAddress(family, address, str(host))


def resolve_target(host: Host) -> ResolvedAddress:
    """The address to send to."""
    found = resolve(host)
    if found.is_any:
        raise ConfigError(f"{host} stands for all addresses of a machine: name the one to send to")
    return found


class DropCount:
    """How many datagrams the system dropped, over all sockets of a listener; 0 where the system does not count them."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._before = 0

    @property
    def count(self) -> int:
        by_system = None if self._socket is None else dropped_datagrams(self._socket)
        return self._before + (by_system or 0)

    def watch(self, listener: socket.socket | None) -> None:
        """Add the drops of this socket from now on to those of earlier sockets."""
        self._before = self.count
        self._socket = listener


def check_listening(endpoint: ResolvedAddress, interface: str | None, *, allow: str, insecure: bool) -> None:
    """Raise ConfigError if other machines could send to an address or a group, unless `insecure`.

    `allow` says how to listen there anyway. A group is reached through its interface.
    """
    host = str(endpoint.address[0])
    if endpoint.is_multicast:
        allow = f"set interface={'lo' if endpoint.family == socket.AF_INET6 else '127.0.0.1'}, {allow}"
        host = "0.0.0.0"
        if interface is not None and _is_ipv4(interface):
            host = interface
        elif interface is not None and _index(interface) == _loopback_index():
            host = "127.0.0.1"
    check_exposure(
        host, what=f"listening at {endpoint.shown}", exposes="send records here", allow=allow, insecure=insecure
    )


def open_listening(endpoint: ResolvedAddress, interface: str | None, buffer_bytes: int) -> socket.socket:
    """A non-blocking socket that gets what is sent to an address of this machine, or to a group."""
    listener = socket.socket(endpoint.family, socket.SOCK_DGRAM)
    try:
        _enlarge(listener, buffer_bytes)
        if endpoint.is_multicast:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(endpoint.address)  # to the group: not to everything that is sent to the port
            _join(listener, endpoint, interface)
        else:
            if interface is not None:
                raise ConfigError(f"interface={interface!r}: {endpoint.shown} is not a multicast group")
            listener.bind(endpoint.address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise unavailable(error, f"cannot listen at {endpoint.shown}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def open_asking(endpoint: ResolvedAddress, buffer_bytes: int) -> socket.socket:
    """A non-blocking socket at any address of this machine, to ask the senders of a group and get their answers."""
    asking = socket.socket(endpoint.family, socket.SOCK_DGRAM)
    try:
        _enlarge(asking, buffer_bytes)
        asking.bind(("", 0))
        asking.setblocking(False)
    except OSError as error:
        asking.close()
        raise unavailable(error, f"cannot ask the senders of {endpoint.shown}") from error
    return asking


def open_sending(
    endpoint: ResolvedAddress, interface: str | None, ttl: int | None, source: ResolvedAddress | None
) -> socket.socket:
    """A socket that sends to an address or a group, and may get answers. `source` is the address to send from."""
    sender = socket.socket(endpoint.family, socket.SOCK_DGRAM)
    try:
        _enlarge(sender, 1 << 20)
        # Not a timeout of the socket object, which would make reading answers wait, too.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
        if source is not None:
            sender.bind(source.address)
        if endpoint.is_multicast:
            if interface is not None:
                _send_through(sender, endpoint, interface)
                if source is None and _is_ipv4(interface):  # so that answers to receivers come from the same address
                    sender.bind((interface, 0))
            if ttl is not None:
                if endpoint.family == socket.AF_INET6:
                    sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
                else:
                    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        elif interface is not None or ttl is not None:
            raise ConfigError(f"interface and ttl are for multicast: {endpoint.shown} is not a multicast group")
    except OSError as error:
        sender.close()
        raise unavailable(error, f"cannot send to {endpoint.shown}") from error
    except BaseException:
        sender.close()
        raise
    return sender


def unavailable(error: OSError, what: str) -> BrokerUnavailableError:
    advice = ""
    if error.errno == errno.EADDRINUSE:
        advice = ": another program listens there; stop it, or choose another port"
    elif error.errno == errno.EADDRNOTAVAIL:
        advice = ": this machine does not have the address; use one of its own, or 0.0.0.0 for all"
    elif error.errno in (errno.ENODEV, errno.ENXIO, errno.ENETUNREACH):
        advice = ": no interface of this machine leads there now; for a multicast group, set interface="
    elif error.errno == errno.EACCES:
        advice = ": a port below 1024 needs root, and a broadcast address is not supported"
    return BrokerUnavailableError(f"{what}: {error.strerror or error}{advice}", retriable=error.errno not in _NOT_OURS)


def dropped_datagrams(listener: socket.socket) -> int | None:
    """How many datagrams the system dropped because the socket's buffer was full; None where it does not count them."""
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError):  # the socket is closed, or the kernel is older than 4.12
        return int(_MEMINFO.unpack(listener.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[8])
    return None


def _enlarge(listener: socket.socket, buffer_bytes: int) -> None:
    """Ask the system for a larger receive buffer. It may give less."""
    with contextlib.suppress(OSError):  # without privileges, the limit of the system holds
        if sys.platform.startswith("linux"):
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
            return
    with contextlib.suppress(OSError):  # some systems refuse what is too large instead of giving less
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


def _join(listener: socket.socket, endpoint: ResolvedAddress, interface: str | None) -> None:
    group = socket.inet_pton(endpoint.family, endpoint.address[0].partition("%")[0])
    if endpoint.family == socket.AF_INET6:
        index = endpoint.address[3] if interface is None else _index(interface)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("@I", index))
        option = (socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL)
    else:
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + _of_ipv4(interface))
        option = (socket.IPPROTO_IP, _IP_MULTICAST_ALL)
    if sys.platform.startswith("linux"):  # else groups that other sockets of this machine joined arrive, too
        with contextlib.suppress(OSError):  # kernels older than 4.20 do not have it for IPv6
            listener.setsockopt(*option, 0)


def _send_through(sender: socket.socket, endpoint: ResolvedAddress, interface: str) -> None:
    if endpoint.family == socket.AF_INET6:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, _index(interface))
    else:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(4) + _of_ipv4(interface))


def _of_ipv4(interface: str | None) -> bytes:
    """The second half of `struct ip_mreqn`: an address of the interface, or its number."""
    if interface is None:
        return bytes(8)
    if _is_ipv4(interface):
        return ipaddress.IPv4Address(interface).packed + bytes(4)
    return bytes(4) + struct.pack("@i", _index(interface))


def _is_ipv4(interface: str) -> bool:
    try:
        ipaddress.IPv4Address(interface)
    except ValueError:
        return False
    return True


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"interface={interface!r} is not an IPv4 address, and not one of this machine's interfaces: {names}"
        ) from error


def _loopback_index() -> int | None:
    """The number of the loopback interface, by its usual names."""
    return next((index for index, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
