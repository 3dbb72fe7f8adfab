"""How brokers want to be spoken to, by librdkafka's settings: for the few requests that do not go through librdkafka.

TLS is done by Python's own `ssl`, logging in by the mechanism PLAIN. Who uses another mechanism, or keys that only
librdkafka can read, is told so by ConfigError, and does without the answers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import ssl

PROTOCOL: Final = "security.protocol"
_FALSE: Final = frozenset({"false", "f", "0"})
_ONLY_LIBRDKAFKA: Final = ("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.engine.location")


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """What `security.protocol` and the settings beside it say."""

    settings: Mapping[str, Any]
    """Settings of librdkafka."""

    @property
    def protocol(self) -> str:
        return str(self.settings.get(PROTOCOL, "plaintext")).lower()

    @property
    def is_plain(self) -> bool:
        """Whether whoever connects may ask."""
        return self.protocol == "plaintext"

    def wrapped(self, plain: socket.socket, host: str) -> socket.socket:
        """The connection as requests go over it: inside of TLS, if that is wanted. OSError where that fails."""
        if not self.protocol.endswith("ssl"):
            return plain
        return self._tls().wrap_socket(plain, server_hostname=host)

    def login(self) -> Login | None:
        """With what to log in; None where nobody does."""
        if not self.protocol.startswith("sasl"):
            return None
        mechanism = str(self._first("sasl.mechanisms", "sasl.mechanism") or "GSSAPI").upper()
        if mechanism != "PLAIN":
            raise ConfigError(f"without librdkafka, only the SASL mechanism PLAIN is known, not {mechanism}")
        return Login(self._text("sasl.username") or "", self._text("sasl.password") or "")

    def _tls(self) -> ssl.SSLContext:
        import ssl

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

    def _first(self, *names: str) -> str | None:
        return next((text for name in names if (text := self._text(name))), None)

    def _text(self, name: str) -> str | None:
        value = self.settings.get(name)
        return None if value is None or value == "" else str(value)


PLAIN: Final = Security({})
"""Neither encrypted nor logged in: the embedded log on this machine."""
