"""Settings of `amqp1:` URLs, and what they and the machine's files say about connecting."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.errors import ConfigError
from penstock.queues.amqp1.wire import Login
from penstock.streams.backend_url import BackendUrl

CONNECT_FILE: Final = "MESSAGING_CONNECT_FILE"
"""The environment variable that names Qpid's file of connection settings."""
_CONNECT_FILES: Final = ("connect.json", "~/.config/messaging/connect.json", "/etc/messaging/connect.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp1Settings:
    """Settings of an `amqp1:` URL."""

    prefetch: int = 200
    """How many messages the broker sends ahead of `receive`. More is faster; fewer are shared more evenly between
    consumers, and fewer are counted as delivered when this one dies."""
    retries: Literal["consumer", "broker"] = "consumer"
    """Who waits between the attempts of a handler that fails, and counts them. consumer: the `App`, which holds the
    record meanwhile. broker: the record goes back as a delayed copy, and the attempts count across processes; needs
    a broker with delayed delivery."""
    dead_letters: bool | None = None
    """Whether the broker keeps rejected messages. None: as the product does unless configured otherwise: Artemis and
    ActiveMQ do, Qpid and RabbitMQ do not."""
    group_by_key: bool = False
    """Make the key the message's group, too: brokers that know groups deliver all messages of one to one consumer."""
    virtual_host: str | None = None
    """The host name that the broker is told. None: that of the URL. RabbitMQ takes `vhost:NAME`."""
    heartbeat_s: float = 10.0
    """A peer that is silent for twice as long is considered dead."""
    connect_timeout_s: float = 10.0
    """How long opening the queue waits for the broker."""
    send_timeout_s: float = 60.0
    """How long `send` and `settle` wait for the broker's answer."""
    ca_file: str | None = None
    """For amqps1: the certificates to trust, in PEM. None: those of the system."""
    cert_file: str | None = None
    """For amqps1: this client's certificate, in PEM, with `key_file`. Without a user, it is the login (EXTERNAL)."""
    key_file: str | None = None
    """For amqps1: the key of this client's certificate, in PEM."""
    client_id: str = "penstock"
    """The first part of the container id, which is this program's name in the broker's tools."""

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= 65535:
            raise ConfigError(f"prefetch={self.prefetch} must be an integer from 1 to 65535")
        for name in ("heartbeat_s", "connect_timeout_s", "send_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")


def login_of(url: BackendUrl, settings: Amqp1Settings, container: str) -> Login:
    """How to connect. Without a user in the URL, that of Qpid's connection file, if it is about the same host."""
    user, password = url.user, url.password
    ca_file, cert_file, key_file = settings.ca_file, settings.cert_file, settings.key_file
    if user is None and cert_file is None:
        found = connect_file(url)
        user, password = found.get("user"), found.get("password")
        tls = found.get("tls", {})
        ca_file = ca_file or tls.get("ca")
        cert_file, key_file = tls.get("cert"), tls.get("key")
    context = None
    if url.scheme == "amqps1":
        try:
            context = ssl.create_default_context(cafile=ca_file)
            if cert_file is not None:
                context.load_cert_chain(cert_file, key_file)
        except OSError as error:
            raise ConfigError(f"the certificates for {url.shown} cannot be loaded: {error}") from error
    elif settings.ca_file or settings.cert_file or settings.key_file:
        raise ConfigError(f"ca_file, cert_file and key_file are for TLS: use amqps1:// instead of {url.shown}")
    return Login(
        container=container,
        hostname=settings.virtual_host,
        user=user,
        password=password,
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
