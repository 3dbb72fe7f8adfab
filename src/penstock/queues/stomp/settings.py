"""Settings of `stomp:` URLs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StompSettings:
    """Settings of a `stomp:` URL."""

    prefetch: int = 200
    """How many messages the broker sends ahead of `receive`; Artemis as many KiB. More is faster; fewer are shared more
    evenly between consumers, and fewer come again when this one dies."""
    destination: str = "/queue/{queue}"
    """The broker's name for the queue."""
    dead_letters: str = ""
    """The queue to which rejected messages are sent. Empty: they are refused with NACK, and the broker decides:
    ActiveMQ Classic moves them to its dead letter queue."""
    text: bool = False
    """Send values of UTF-8 without a length: JMS clients get them as TextMessage. false: all are BytesMessage."""
    send_delay_s: float = 0.0
    """Let the broker hold back each message that is sent, for ActiveMQ (with `schedulerSupport="true"`) and Artemis."""
    ttl_s: float | None = None
    """After this time, the broker drops a message that nobody has received. None: never."""
    priority: int | None = None
    """JMS priority of sent messages, 0 to 9. None: the broker's, 4."""
    heartbeat_s: float = 5.0
    """A broker that is silent for twice as long is considered dead."""
    connect_timeout_s: float = 10.0
    """How long opening the queue, and its first `receive`, wait for the broker."""
    send_timeout_s: float = 60.0
    """How long `send` and `settle` wait for the broker's receipt."""
    vhost: str | None = None
    """The virtual host, as RabbitMQ has them. None: the host of the URL."""
    ca_file: str | None = None
    """For stomp+ssl: the certificates to trust, in PEM. None: those of the system."""
    cert_file: str | None = None
    """For stomp+ssl: this client's certificate, in PEM, with `key_file`."""
    key_file: str | None = None
    """For stomp+ssl: the key of this client's certificate, in PEM."""

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise ConfigError(f"prefetch={self.prefetch} must be an integer >= 1")
        if self.priority is not None and not 0 <= self.priority <= 9:
            raise ConfigError(f"priority={self.priority} must be an integer from 0 to 9")
        if self.send_delay_s < 0:
            raise ConfigError(f"send_delay_s={self.send_delay_s} must not be negative")
        for name in ("heartbeat_s", "connect_timeout_s", "send_timeout_s", "ttl_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} must be positive")
