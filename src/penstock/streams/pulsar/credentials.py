"""How a client of Pulsar logs in: by token, by user and password, or by certificate.

In this order: the settings, the URL, the environment, and the file that `PULSAR_CLIENT_CONF` names, which Pulsar's own
command-line tools read, too.
"""

from __future__ import annotations

import base64
import json
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
_ADVICE: Final = {
    "AuthenticationTls": "set tls_cert and tls_key to the files of its authParams",
    "AuthenticationKeyStoreTls": "set tls_cert and tls_key to PEM files with the same certificate",
    "AuthenticationOAuth2": "get a token from the issuer, and set token_file to the file where it is kept up to date",
}
"""What to do instead of some plugins that this client does not have."""


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


@dataclass(frozen=True, slots=True)
class _Basic:
    """The parameters of AuthenticationBasic, by their names in Java."""

    userId: str
    password: str = field(repr=False)


def credentials_of(url: BackendUrl, settings: PulsarSettings) -> Credentials:
    """The credentials of a connection. ConfigError if the file of the environment cannot be used."""
    if url.user is not None and (settings.token is not None or settings.token_file is not None):
        raise ConfigError(f"{url.shown} has a user, and there is a token: log in with one of them, and omit the other")
    config = _client_config()
    tls_ca = config.get("tlsTrustCertsFilePath") or None
    if settings.token_file is not None:
        return Credentials(_file(settings.token_file), tls_ca=tls_ca)
    if url.user is not None:
        return Credentials(user=url.user, password=url.password or "", tls_ca=tls_ca)
    token = settings.token or url.password or os.environ.get(TOKEN_VARIABLE)
    if token:
        return Credentials(lambda: token, tls_ca=tls_ca)
    if settings.tls_cert is not None:
        return Credentials(tls_ca=tls_ca)
    return _by_plugin(config.get("authPlugin", ""), config.get("authParams", ""), tls_ca)


def _by_plugin(plugin: str, parameters: str, tls_ca: str | None) -> Credentials:
    """The credentials of the client's configuration file. ConfigError for a plugin that cannot be used here: without
    it, the client would be anonymous."""
    name = plugin.rpartition(".")[2]
    if name in ("", "AuthenticationDisabled"):
        return Credentials(tls_ca=tls_ca)
    if name == "AuthenticationToken":
        if not parameters:
            raise _unusable(plugin, "authParams is missing: set it to token:TOKEN or file:///PATH")
        return Credentials(_token_of(parameters), tls_ca=tls_ca)
    if name == "AuthenticationBasic":
        try:
            who = _Basic(**json.loads(parameters))
        except (ValueError, TypeError):
            raise _unusable(plugin, 'authParams is not {"userId":"USER","password":"PASSWORD"}') from None
        return Credentials(user=who.userId, password=who.password, tls_ca=tls_ca)
    raise _unusable(plugin, _ADVICE.get(name, "log in with token_file, tls_cert and tls_key, or a user in the URL"))


def _unusable(plugin: str, advice: str) -> ConfigError:
    return ConfigError(
        f"the file {os.environ.get(CONFIG_VARIABLE)}, named by {CONFIG_VARIABLE}, logs in with {plugin}, which cannot "
        f"be used: {advice}"
    )


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
