"""TLS and login, by librdkafka's settings, for the few requests that do not go through librdkafka.

Supports TLS by Python's `ssl`, and the SASL mechanism PLAIN. Other mechanisms, and keys that only librdkafka can read,
are a ConfigError.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError

PROTOCOL: Final = "security.protocol"
_FALSE: Final = frozenset({"false", "f", "0"})
_ONLY_LIBRDKAFKA: Final = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.engine.location")


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """The security settings of librdkafka."""

    settings: Mapping[str, Any]

    @property
    def protocol(self) -> str:
        return str(self.settings.get(PROTOCOL, "plaintext")).lower()

    @property
    def is_plain(self) -> bool:
        """Whether requests need neither TLS nor a login."""
        return self.protocol == "plaintext"

    def without_login(self) -> Security:
        """The same with TLS, if there is any, but without SASL."""
        return Security({**self.settings, PROTOCOL: "ssl" if self.protocol.endswith("ssl") else "plaintext"})

    def wrapped(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket, inside TLS if that is set. Raises OSError if the handshake fails."""
        if not self.protocol.endswith("ssl"):
            return plain
        return self._tls().wrap_socket(plain, server_hostname=host)

    def login(self) -> tuple[str, str] | None:
        """The user and password; None without SASL."""
        if not self.protocol.startswith("sasl"):
            return None
        mechanism = (self._text("sasl.mechanisms") or self._text("sasl.mechanism") or "GSSAPI").upper()
        if mechanism != "PLAIN":
            raise ConfigError(f"without librdkafka, only the SASL mechanism PLAIN is supported, not {mechanism}")
        return self._text("sasl.username") or "", self._text("sasl.password") or ""

    def _tls(self) -> ssl.SSLContext:
        for name in _ONLY_LIBRDKAFKA:
            if self._text(name):
                raise ConfigError(f"without librdkafka, {name} cannot be used")
        authorities = self._text("ssl.ca.location")
        try:
            context = ssl.create_default_context(
                cafile=None if authorities == "probe" else authorities, cadata=self._text("ssl.ca.pem")
            )
            if str(self._text("ssl.endpoint.identification.algorithm")).lower() == "none":
                context.check_hostname = False
            if str(self._text("enable.ssl.certificate.verification")).lower() in _FALSE:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if certificate := self._text("ssl.certificate.location"):
                password = self._text("ssl.key.password") or ""  # never ask for it on the terminal
                context.load_cert_chain(certificate, self._text("ssl.key.location"), lambda: password)
        except OSError as error:
            raise ConfigError(f"the certificates and keys of the settings cannot be used: {error}") from error
        return context

    def _text(self, name: str) -> str | None:
        value = self.settings.get(name)
        return None if value is None or value == "" else str(value)


PLAIN: Final = Security({})
"""Without TLS and login, as the embedded log is."""
