"""Settings of `amqp1:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError


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
