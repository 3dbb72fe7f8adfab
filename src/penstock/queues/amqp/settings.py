"""Settings of `amqp:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.queues.reconnecting import LinkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings(LinkSettings):
    """Settings of an `amqp:` URL."""

    queue_type: Literal["quorum", "classic"] = "quorum"
    """For a queue that is declared: replicated by consensus, or on one node."""
    dead_letters: str = "{queue}.dead"
    """The queue for rejected messages, declared with the queue. Empty: rejected messages are dropped. For a queue that
    exists already, its own policy decides."""
    delivery_limit: int | None = None
    """For a quorum queue that is declared: after this many returns, the broker moves a message to the dead letters.
    None: it never does, also on RabbitMQ 4, which has a limit of 20 by itself."""
    declare: bool = True
    """Declare the queue if it does not exist. false: raise an error instead."""
    heartbeat_s: int = 10
    """A peer that is silent for twice as long is considered dead."""
    client_id: str = "penstock"
    """The connection's name in RabbitMQ's tools."""

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= 65535:
            raise ConfigError(f"prefetch={self.prefetch} must be an integer from 1 to 65535")
        LinkSettings.__post_init__(self)
        if self.delivery_limit is not None and (self.delivery_limit < 1 or self.queue_type != "quorum"):
            raise ConfigError("delivery_limit must be an integer >= 1, and needs queue_type=quorum")
