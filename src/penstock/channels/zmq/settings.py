"""Settings of ZeroMQ channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.channels.peer_settings import PeerSettings
from penstock.errors import ConfigError
from penstock.streams.backend_url import check_counts, check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(PeerSettings):
    """Settings of a `zmq+tcp:` or `zmq+ipc:` URL."""

    format: Literal["penstock", "plain"] = "penstock"
    """penstock: frames with key, headers, timestamp and numbers; messages of other programs are read as plain ones.
    plain: the message is the value, and what stands before it in a message of several parts is the key."""
    topic: str = ""
    """For pubsub: the prefixes that a listener subscribes to, separated by commas; the topic of what a sender sends."""
    buffer: int = 1_000
    """ZeroMQ's high-water mark: how many messages wait in this process, for each peer. One message holds the records of
    one `send`, up to about 64 KiB. pubsub drops what does not fit; the others hold senders back."""
    socket_buffer_bytes: int | None = None
    """The size of the system's buffers of each connection. None: the system decides."""
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
        self.check(self.topic)
        check_counts(self, "buffer", "socket_buffer_bytes")
        check_positive(self, "heartbeat_s")
        check_not_negative(self, "linger_s")
        if self.curve_key_file is None and (self.curve_server_file or self.curve_clients_folder):
            raise ConfigError("curve_server_file and curve_clients_folder need curve_key_file, this side's own key")
