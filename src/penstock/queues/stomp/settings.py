"""Settings of `stomp:` URLs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.queues.reconnecting import LinkSettings
from penstock.streams.backend_url import check_counts, check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class StompSettings(LinkSettings):
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
    max_frame_bytes: int | None = None
    """The largest message with its headers that is sent: a RabbitMQ that gets a larger frame than its
    `stomp.max_frame_size` closes the connection without a word. None: 4 MiB for RabbitMQ 4, its own default; others
    say what is too large."""
    send_delay_s: float = 0.0
    """Let the broker hold back each message that is sent, for ActiveMQ (with `schedulerSupport="true"`) and Artemis."""
    ttl_s: float | None = None
    """After this time, the broker drops a message that nobody has received. None: never."""
    priority: int | None = None
    """JMS priority of sent messages, 0 to 9. None: the broker's, 4."""
    heartbeat_s: float = 5.0
    """A broker that is silent for twice as long is considered dead."""
    vhost: str | None = None
    """The virtual host, as RabbitMQ has them. None: the host of the URL."""

    def __post_init__(self) -> None:
        LinkSettings.__post_init__(self)
        if self.priority is not None and not 0 <= self.priority <= 9:
            raise ConfigError(f"priority={self.priority} must be an integer from 0 to 9")
        check_not_negative(self, "send_delay_s")
        check_counts(self, "max_frame_bytes")
        check_positive(self, "ttl_s")
