"""Settings of `amqp1:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.queues.reconnecting import LinkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp1Settings(LinkSettings):
    """Settings of an `amqp1:` URL."""

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
    cert_file: str | None = None
    """For TLS: this client's certificate, in PEM, with `key_file`. Without a user, it is the login (EXTERNAL)."""
    client_id: str = "penstock"
    """The first part of the container id, which is this program's name in the broker's tools."""

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= 65535:
            raise ConfigError(f"prefetch={self.prefetch} must be an integer from 1 to 65535")
        LinkSettings.__post_init__(self)
