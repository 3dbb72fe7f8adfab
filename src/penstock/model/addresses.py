"""Parsing HOST:PORT addresses, and refusing to listen beyond this machine without a login."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from penstock.errors import ConfigError

METRICS_EXPOSE: Final = "see the names of your topics and groups and how much they are used"
"""What metrics reveal, for the `exposes` of `check_exposure`."""


def host_and_port(text: str, what: str, example: str) -> tuple[str, int]:
    """Parse HOST:PORT or [IPv6]:PORT; an empty host means every address. `what` names the option in the ConfigError."""
    host, separator, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{what} {text!r} is not HOST:PORT, such as {example}")
    return host.strip("[]") or "0.0.0.0", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. Names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, *, what: str, exposes: str, allow: str, insecure: bool) -> None:
    """Raise ConfigError if other machines could reach `host`, unless `insecure`. Names are looked up, as bind() does.

    `what` is the option with its value, `exposes` completes "lets every machine that can reach this one ...", and
    `allow` says how to listen there anyway.
    """
    if insecure:
        return
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{what}: {host!r} is not a host name or address: {error}") from error
    if not all(is_loopback(str(address[0])) for *_, address in found):
        raise ConfigError(
            f"{what} lets every machine that can reach this one {exposes}, without a login. "
            f"Listen on 127.0.0.1, or {allow} if the network keeps strangers out."
        )
