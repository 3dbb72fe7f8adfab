"""The settings of `rabbitmq-stream://` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import PasswordSettings, check_counts, check_key_has_certificate, check_seconds


@dataclass(frozen=True, slots=True)
class RabbitMqSettings(PasswordSettings):
    """Settings of RabbitMQ streams, behind the question mark of their URL or as options of `connect`."""

    partitions: int = 1
    """How many partitions a topic gets that is created without saying it, also by its first record. More than one make
    a super stream, for which RabbitMQ 3.13 is needed."""
    replicas: int | None = None
    """How many nodes of a cluster keep each new topic. None: as the server is configured."""
    max_age_s: float | None = None
    """New topics remove records that are older, a segment at a time. None: as the server is configured."""
    max_bytes: int | None = None
    """New topics keep about this much in each partition, in whole segments. None: as the server is configured."""
    segment_bytes: int | None = None
    """How large the segments of new topics are. Retention removes whole segments, and never the last. None: 500 MB."""
    load_balancer: bool = False
    """The addresses in the URL are those of a load balancer, or the only ones that can be reached: connect to nothing
    else. false: nodes of a cluster are connected to at the addresses that they advertise."""
    management: str | None = None
    """The URL of the management API, which is asked for the list of topics: the stream protocol cannot tell it. None:
    port 15672 of the first host, or 15671 with TLS."""
    timeout_s: float = 5.0
    """How long a connection and an answer may take. Longer hides short outages, and delays the error."""
    delivery_timeout_s: float = 60.0
    """How long an append is retried before its receipt fails."""
    heartbeat_s: int = 5
    """A server that is silent for twice as long is considered dead."""
    login: Literal["password", "certificate"] = "password"
    """How to log in: with user and password of the URL, or with the certificate in `cert_file`, for which the server
    needs the plugin rabbitmq_auth_mechanism_ssl."""
    ca_file: str | None = None
    """For TLS: the certificates to trust, in PEM. None: those of the system."""
    cert_file: str | None = None
    """For TLS: this client's certificate, in PEM, with `key_file`."""
    key_file: str | None = None
    """For TLS: the key of this client's certificate, in PEM."""
    client_id: str = "penstock"
    """The name of connections in RabbitMQ's tools."""

    def __post_init__(self) -> None:
        check_counts(self, "partitions", "replicas", "max_bytes", "segment_bytes", "heartbeat_s")
        check_seconds(self, "max_age_s", "timeout_s", "delivery_timeout_s")
        check_key_has_certificate(self, "key_file", "cert_file")
        if self.login == "certificate" and self.cert_file is None:
            raise ConfigError("login=certificate needs cert_file and key_file")
        if self.login == "certificate" and self.password_may_change:
            raise ConfigError("login=certificate takes no password: omit password_env and password_file")
        if self.max_age_s is not None and self.max_age_s < 1:
            raise ConfigError(
                f"max_age_s={self.max_age_s!r} must be at least 1, which is the least that RabbitMQ takes"
            )
        if self.management is not None and (
            "@" in self.management or not self.management.startswith(("http://", "https://"))
        ):
            raise ConfigError("management must be http://HOST:PORT or https://HOST:PORT: the user is that of the URL")
