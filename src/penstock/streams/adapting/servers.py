"""How adapters reach a server: its client library, certificates, and whether anybody listens at an address."""

from __future__ import annotations

import contextlib
import importlib
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from penstock.errors import BrokerUnavailableError, ConfigError, MissingExtraError
from penstock.streams.url import Host


def import_extra(module: str, what: str, extra: str) -> Any:
    """The client library of a system. MissingExtraError names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, extra) from None


def tls_context(shown: str, ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """The TLS context of a client that trusts these certificates (None: those of the system), and may have its own.
    ConfigError if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ConfigError(f"the certificates for {shown} cannot be loaded: {error}") from error
    return context


def tls_failure(shown: str, error: object, plain_scheme: str) -> BrokerUnavailableError:
    """The message for a failure of TLS, with what to do about it. `plain_scheme` is the scheme of URLs without TLS."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "set ca_file to the certificates that are to be trusted"
    elif any(word in text for word in ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "HANDSHAKE_FAILURE")):
        advice = "set cert_file and key_file to a certificate of this client that the server trusts"
    else:
        advice = f"is it a port without TLS? Then use {plain_scheme}://"
    return BrokerUnavailableError(f"TLS with {shown} failed: {text}; {advice}", retriable=False)


def check_accepts(hosts: Sequence[Host], timeout_s: float, where: str) -> None:
    """Return if one of the hosts accepts a connection. Raises BrokerUnavailableError."""
    problem: OSError | None = None
    for host in hosts:
        try:
            with socket.create_connection((host.name, host.port), timeout_s):
                return
        except OSError as error:
            problem = error
    raise BrokerUnavailableError(f"{where} is unavailable: {problem}. Is it running, and is the URL right?")


class Waker:
    """Wakes a thread that waits for the network, by a socket that the thread watches, too. Any thread may call it."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full of wake-ups, or closed: one more changes nothing
            self._writer.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.reader.recv(4096):  # ends: with BlockingIOError, once it is empty
                pass

    def close(self) -> None:
        self.reader.close()
        self._writer.close()
