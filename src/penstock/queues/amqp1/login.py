"""How to log in to a broker: by the URL, its settings, or the connection file that programs on Qpid's clients share."""

from __future__ import annotations

import functools
import json
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.queues.amqp1.settings import Amqp1Settings
from penstock.streams.adapting.servers import tls_context
from penstock.streams.backend_url import BackendUrl

TLS_SCHEME: Final = "amqps1"
CONNECT_FILE: Final = "MESSAGING_CONNECT_FILE"
"""The environment variable that names the connection file."""
_CONNECT_FILES: Final = ("connect.json", "~/.config/messaging/connect.json", "/etc/messaging/connect.json")


@dataclass(frozen=True, slots=True)
class Login:
    """How to connect, besides the address."""

    container: str
    """The name of this program in the broker's tools."""
    hostname: str | None
    """What the broker is told to be called. None: the name by which it is reached."""
    user: str | None
    read_password: Callable[[], str | None] = field(repr=False)
    """Called for each connection, as the password may change."""
    tls: ssl.SSLContext | None
    idle_timeout_s: float
    has_certificate: bool = False

    @property
    def mechanism(self) -> str:
        if self.user is not None:
            return "PLAIN"
        return "EXTERNAL" if self.has_certificate else "ANONYMOUS"


def login_of(url: BackendUrl, settings: Amqp1Settings, container: str) -> Login:
    """How to connect. Without a user in the URL, that of Qpid's connection file, if it is about the same host."""
    user = url.user
    read_password = functools.partial(settings.password_of, url)
    read_password()
    ca_file, cert_file, key_file = settings.ca_file, settings.cert_file, settings.key_file
    if user is None and cert_file is None:
        found = connect_file(url)
        user, read_password = found.get("user"), functools.partial(found.get, "password")
        tls = found.get("tls", {})
        if url.scheme != TLS_SCHEME and (tls or found.get("scheme") == "amqps"):
            raise ConfigError(f"the connection file for {url.shown} asks for TLS: write {TLS_SCHEME}://")
        ca_file = ca_file or tls.get("ca")
        cert_file, key_file = tls.get("cert"), tls.get("key")
    settings.check_tls(url, TLS_SCHEME)
    context = tls_context(url.shown, ca_file, cert_file, key_file) if url.scheme == TLS_SCHEME else None
    return Login(
        container=container,
        hostname=settings.virtual_host,
        user=user,
        read_password=read_password,
        tls=context,
        idle_timeout_s=2 * settings.heartbeat_s,
        has_certificate=context is not None and cert_file is not None,
    )


def connect_file(url: BackendUrl) -> Mapping[str, Any]:
    """Qpid's connection settings for the URL's host: of the file in $MESSAGING_CONNECT_FILE, else of the first of the
    usual places that has one. Empty if there is none, or it is about another host."""
    named = os.environ.get(CONNECT_FILE)
    for name in (named,) if named else _CONNECT_FILES:
        path = Path(name).expanduser()
        if named or path.is_file():
            try:
                found = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be read as connection settings: {error}") from error
            is_ours = isinstance(found, dict) and found.get("host", "localhost") == url.host.name
            return found if is_ours else {}
    return {}
