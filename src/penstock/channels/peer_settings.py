"""The settings that channels with patterns share, whatever their transport is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_counts, check_not_negative, check_positive

Pattern = Literal["pubsub", "pipeline", "request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """Settings of every `zmq+...:` and `nng+...:` URL."""

    pattern: Pattern = "pubsub"
    """pubsub: every listener gets every record that was sent since it subscribed. pipeline: one of the listeners gets
    each record. request: the same, and `send` waits until that listener has stored it."""
    bind: bool | None = None
    """Whether this side binds the address, or connects to it (nng: listens or dials). None: with pubsub the sender
    binds, else the listener. The other side must do the opposite."""
    max_message_bytes: int = 16 << 20
    """A larger record is refused; a peer that sends a larger message is disconnected."""
    wait_for_listener_s: float = 1.0
    """For pubsub: how long the first `send` waits for a subscriber, without which the first records would be lost."""
    send_timeout_s: float = 10.0
    """For pipeline: how long `send` waits for a listener with room."""
    answer_timeout_s: float = 30.0
    """For request: how long `send` waits for the answer."""

    def check(self, topic: str) -> None:
        """Check these settings, and the topic of pubsub."""
        check_counts(self, "max_message_bytes")
        check_positive(self, "send_timeout_s", "answer_timeout_s")
        check_not_negative(self, "wait_for_listener_s")
        if topic and self.pattern != "pubsub":
            raise ConfigError(f"topic={topic!r}: only pattern=pubsub has topics")

    def binds(self, *, listens: bool) -> bool:
        """Whether this side binds the address. By default, a publisher binds, and subscribers come and go; otherwise a
        listener binds, and senders come and go."""
        return listens != (self.pattern == "pubsub") if self.bind is None else self.bind
