"""The settings of `nats://` and `tls://` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_counts, check_key_has_certificate, check_seconds


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Settings of a stream in NATS JetStream, behind the question mark of its URL or as options of `connect`."""

    partitions: int = 1
    """How many partitions a topic gets that is created without saying it, also by its first record."""
    replicas: int = 1
    """How many servers of a cluster keep each new topic. More survive the loss of servers, and cost a round trip
    between them."""
    storage: Literal["file", "memory"] = "file"
    """Where new topics are kept. In memory, they are gone when the server ends."""
    max_messages: int | None = None
    """New topics keep this many of the newest records in each partition. None: all."""
    max_bytes: int | None = None
    """New topics keep this much in each partition. None: all."""
    max_age_s: float | None = None
    """New topics remove records that are older. None: none are."""
    domain: str = ""
    """The JetStream domain, for leaf nodes and hubs."""
    timeout_s: float = 5.0
    """How long a connection and an answer may take. Longer hides short outages, and delays the error."""
    delivery_timeout_s: float = 60.0
    """How long an append is retried before its receipt fails. New topics remember message ids for twice as long."""
    max_in_flight: int = 1_000
    """How many records are sent before their acknowledgements are awaited. 1 keeps the order of records even if a
    cluster elects a leader between them; more is faster."""
    credentials: str | None = None
    """A credentials file (JWT and key). None: `NATS_CREDS` of the environment."""
    nkey: str | None = None
    """A file with the seed of an nkey. None: `NATS_NKEY` of the environment."""
    tls_ca: str | None = None
    """A file of CA certificates, in place of those of the system. None: `NATS_CA` of the environment. With this or
    `tls_cert`, or `tls://`, a server without TLS is refused."""
    tls_cert: str | None = None
    """The client's certificate. None: `NATS_CERT` of the environment."""
    tls_key: str | None = None
    """The key of the client's certificate. None: `NATS_KEY` of the environment."""

    def __post_init__(self) -> None:
        check_counts(self, "partitions", "replicas", "max_messages", "max_bytes", "max_in_flight")
        check_seconds(self, "max_age_s", "timeout_s", "delivery_timeout_s")
        check_key_has_certificate(self, "tls_key", "tls_cert")
        if self.credentials is not None and self.nkey is not None:
            raise ConfigError("give either credentials or nkey, not both")
        if self.max_age_s is not None and self.max_age_s < 0.1:
            raise ConfigError(f"max_age_s={self.max_age_s!r} must be at least 0.1, which is the least that NATS takes")
