"""How a client of Pulsar logs in: by token, by user and password, or by certificate.

In this order: the settings, the URL, the environment, and the file that `PULSAR_CLIENT_CONF` names, which Pulsar's own
command-line tools read, too.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.streams.backend_url import BackendUrl
from penstock.streams.pulsar.settings import PulsarSettings

TOKEN_VARIABLE: Final = "PULSAR_TOKEN"
CONFIG_VARIABLE: Final = "PULSAR_CLIENT_CONF"
_TOKEN_PLUGIN: Final = "AuthenticationToken"


@dataclass(frozen=True, slots=True)
class Credentials:
    """At most one of a token and a user. Certificates are settings of their own."""

    token: Callable[[], str] | None = field(default=None, repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    tls_ca: str | None = None
    """Of the client's configuration file."""

    def web_headers(self) -> Mapping[str, str]:
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token()}"}
        if self.user is not None:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


def credentials_of(url: BackendUrl, settings: PulsarSettings) -> Credentials:
    """The credentials of a connection. ConfigError if the file of the environment cannot be used."""
    config = _client_config()
    tls_ca = config.get("tlsTrustCertsFilePath") or None
    if settings.token_file is not None:
        return Credentials(_file(settings.token_file), tls_ca=tls_ca)
    if url.user is not None:
        return Credentials(user=url.user, password=url.password or "", tls_ca=tls_ca)
    token = settings.token or url.password or os.environ.get(TOKEN_VARIABLE)
    if token:
        return Credentials(lambda: token, tls_ca=tls_ca)
    if config.get("authPlugin", "").endswith(_TOKEN_PLUGIN) and config.get("authParams"):
        return Credentials(_token_of(config["authParams"]), tls_ca=tls_ca)
    return Credentials(tls_ca=tls_ca)


def _client_config() -> dict[str, str]:
    """The client's configuration file, lines of NAME=VALUE; empty if the environment names none."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        lines = Path(path).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {path}, named by {CONFIG_VARIABLE}, cannot be read: {error}") from error
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _token_of(parameters: str) -> Callable[[], str]:
    """The token of `authParams`: `token:TOKEN`, `file:///PATH`, or the token itself."""
    if parameters.startswith("file:"):
        return _file(urlsplit(parameters).path)
    token = parameters.removeprefix("token:")
    return lambda: token


def _file(path: str) -> Callable[[], str]:
    def read() -> str:
        try:
            return Path(path).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerUnavailableError(f"the token file {path} cannot be read: {error}", retriable=False) from error

    read()
    return read
