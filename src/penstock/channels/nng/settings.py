"""Settings of nng channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.channels.peer_settings import PeerSettings
from penstock.errors import ConfigError
from penstock.streams.backend_url import check_not_negative

DEFAULT_BUFFER: Final = 1_000
LARGEST_BUFFER: Final = 8192
"""nng's own limit."""
LONGEST_TOPIC_BYTES: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class NngSettings(PeerSettings):
    """Settings of an `nng+tcp:` or `nng+ipc:` URL."""

    format: Literal["penstock", "plain"] = "penstock"
    """penstock: frames with key, headers, timestamp and numbers; messages of other programs are read as plain ones.
    plain: the message is the value."""
    topic: str = ""
    """For pubsub: what messages begin with. A listener gets those that begin with one of its topics, separated by
    commas; with format=plain, the topic is part of the value."""
    buffer: int | None = None
    """How many messages wait in this process, 1,000 unless given: of a listener, and for each peer of a publisher. One
    message holds the records of one `send`, up to about 64 KiB. pubsub drops what does not fit, request holds senders
    back. pipeline has no buffer but those of the system, and holds senders back, too."""
    linger_s: float = 0.5
    """How long `close` leaves the last records or answers to be transmitted. With pipeline, it ends sooner when they
    are; a publisher, and a listener that answers, cannot tell."""
    tls: bool = False
    """Encrypt, over TCP. Both sides need it."""
    ca_file: str | None = None
    """For tls: the certificates to trust, in PEM. Needed by the side that connects; on the side that binds, peers then
    need a certificate, too."""
    cert_file: str | None = None
    """For tls: the certificate of this side, in PEM, with `key_file`. Needed by the side that binds."""
    key_file: str | None = None
    """For tls: the key of this side's certificate, in PEM."""
    insecure: bool = False
    """Whether an address that other machines can reach may be bound without `tls` and `ca_file`."""

    def __post_init__(self) -> None:
        if self.buffer is not None and not 1 <= self.buffer <= LARGEST_BUFFER:
            raise ConfigError(f"buffer={self.buffer} must be an integer from 1 to {LARGEST_BUFFER}")
        if self.buffer is not None and self.pattern == "pipeline":
            raise ConfigError(f"buffer={self.buffer}: nng's pipeline has no buffer of its own; omit it")
        self.check(self.topic)
        check_not_negative(self, "linger_s")
        if len(self.topic.encode()) > LONGEST_TOPIC_BYTES:
            raise ConfigError(f"topic={self.topic[:40]!r}... must have at most {LONGEST_TOPIC_BYTES} bytes")
        if not self.tls and (self.ca_file or self.cert_file or self.key_file):
            raise ConfigError("ca_file, cert_file and key_file need tls=true")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("cert_file and key_file belong together: give both")

    @property
    def messages(self) -> int:
        """How many messages wait in this process."""
        return DEFAULT_BUFFER if self.buffer is None else self.buffer
