"""The settings of `redis://` and `rediss://` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import (
    check_counts,
    check_key_has_certificate,
    check_not_negative,
    check_seconds,
)

TLS_SCHEME: Final = "rediss"
TLS_SETTINGS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Settings of a Redis stream, behind the question mark of its URL or as options of `connect`."""

    prefix: str = ""
    """What the keys of topics begin with: `app:` makes topic `orders` the key `app:orders`."""
    partitions: int = 1
    """How many partitions a topic gets that is created without saying it, also by its first record."""
    max_length: int | None = None
    """Appending keeps this many of the newest records in each partition, and at times a tenth more. None: all."""
    max_age_s: float | None = None
    """Appending removes records that are older. None: none are. A partition that nobody appends to is not trimmed."""
    value_field: str = "value"
    """The field of an entry that holds the value, for streams that other programs write to or read."""
    key_field: str = "key"
    """The field of an entry that holds the key."""
    wait_replicas: int = 0
    """A record is acknowledged once this many replicas have it (WAIT). 0: once the server itself has it. A failover
    loses what no replica has."""
    timeout_s: float = 5.0
    """How long a connection, an answer, and replicas may take. Longer hides short outages, and delays the error."""
    delivery_timeout_s: float = 120.0
    """How long an append is retried before its receipt fails."""
    max_record_bytes: int = 64 << 20
    """Larger records (key, value and headers) are refused. Redis takes up to 512 MB, and keeps all of it in memory."""
    ssl_ca_certs: str | None = None
    """`rediss:`: a file of CA certificates, in place of those of the system."""
    ssl_certfile: str | None = None
    """`rediss:`: the client's certificate."""
    ssl_keyfile: str | None = None
    """`rediss:`: the key of the client's certificate."""
    ssl_cert_reqs: Literal["required", "none"] = "required"
    """`rediss:`: "none" accepts any certificate, and so any server in the middle."""
    ssl_check_hostname: bool = True
    """`rediss:`: whether the certificate must name the host."""

    @property
    def tls(self) -> dict[str, Any]:
        """The settings of `rediss:`, by redis-py's names."""
        return {
            "ssl_ca_certs": self.ssl_ca_certs,
            "ssl_certfile": self.ssl_certfile,
            "ssl_keyfile": self.ssl_keyfile,
            "ssl_cert_reqs": self.ssl_cert_reqs,
            "ssl_check_hostname": self.ssl_check_hostname and self.ssl_cert_reqs == "required",
        }

    def __post_init__(self) -> None:
        check_counts(self, "partitions", "max_length", "max_record_bytes")
        check_seconds(self, "max_age_s", "timeout_s", "delivery_timeout_s")
        check_not_negative(self, "wait_replicas")
        check_key_has_certificate(self, "ssl_keyfile", "ssl_certfile")
        if not self.value_field or not self.key_field or self.value_field == self.key_field:
            raise ConfigError("value_field and key_field must be two different names")
        if set(self.prefix) & set("{}*?[]\\"):
            raise ConfigError(f"prefix={self.prefix!r} must not contain braces, brackets, stars, or backslashes")
