"""Settings of ZeroMQ channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.channels.endpoints import Pattern, binds_by_default
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings:
    """Settings of a `zmq+tcp:` or `zmq+ipc:` URL."""

    pattern: Pattern = "pubsub"
    """pubsub: every listener gets every record that was sent since it subscribed. pipeline: one of the listeners gets
    each record. request: the same, and `send` waits until that listener has stored it."""
    bind: bool | None = None
    """Whether this side binds the address, or connects to it. None: with pubsub the sender binds, else the listener.
    The other side must do the opposite."""
    format: Literal["penstock", "plain"] = "penstock"
    """penstock: frames with key, headers, timestamp and numbers; messages of other programs are read as plain ones.
    plain: the message is the value, and what stands before it in a message of several parts is the key."""
    topic: str = ""
    """Of pubsub: the prefixes that a listener subscribes to, separated by commas; the topic of what a sender sends."""
    buffer: int = 1_000
    """ZeroMQ's high-water mark: how many messages wait in this process, for each peer. One message holds the records of
    one `send`, up to about 64 KiB. pubsub drops what does not fit; the others hold senders back."""
    socket_buffer_bytes: int | None = None
    """The size of the system's buffers of each connection. None: the system decides."""
    max_message_bytes: int = 16 << 20
    """A larger record is refused; a peer that sends a larger message is disconnected."""
    wait_for_listener_s: float = 1.0
    """Of pubsub: how long the first `send` waits for a subscriber, without which the first records would be lost."""
    send_timeout_s: float = 10.0
    """Of pipeline: how long `send` waits for a listener with room."""
    answer_timeout_s: float = 30.0
    """Of request: how long `send` waits for the answer."""
    heartbeat_s: float = 5.0
    """A peer that does not answer a ping for twice as long is disconnected."""
    linger_s: float = 30.0
    """How long `close` waits for records that are not transmitted yet."""
    curve_key_file: str | None = None
    """For encryption by CURVE: the certificate of this side, with its secret key, as `zmq.auth.create_certificates`
    writes it. Both sides need one."""
    curve_server_file: str | None = None
    """For encryption by CURVE, on the side that connects: the public certificate of the one that binds."""
    curve_clients_folder: str | None = None
    """For encryption by CURVE, on the side that binds: the folder with the public certificates (`*.key`) of those that
    may connect. None: everybody who has our public certificate."""
    insecure: bool = False
    """Whether an address that other machines can reach may be bound without `curve_clients_folder`."""

    def __post_init__(self) -> None:
        for name in ("buffer", "max_message_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be an integer >= 1")
        if self.socket_buffer_bytes is not None and self.socket_buffer_bytes < 1:
            raise ConfigError(f"socket_buffer_bytes={self.socket_buffer_bytes} must be an integer >= 1")
        for name in ("send_timeout_s", "answer_timeout_s", "heartbeat_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")
        for name in ("wait_for_listener_s", "linger_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be negative")
        if self.topic and self.pattern != "pubsub":
            raise ConfigError(f"topic={self.topic!r}: only pattern=pubsub has topics")
        if self.curve_key_file is None and (self.curve_server_file or self.curve_clients_folder):
            raise ConfigError("curve_server_file and curve_clients_folder need curve_key_file, this side's own key")

    def binds(self, *, listens: bool) -> bool:
        """Whether this side binds the address."""
        return binds_by_default(self.pattern, listens=listens) if self.bind is None else self.bind
