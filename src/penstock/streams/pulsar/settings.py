"""The settings of `pulsar://` and `pulsar+ssl://` URLs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.errors import ConfigError
from penstock.streams.backend_url import check_counts, check_seconds

TLS_SETTINGS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_verify", "tls_check_hostname")
_MINUTE_S: Final = 60
_MB: Final = 1 << 20
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """Settings of a stream in Pulsar, behind the question mark of its URL or as options of `connect`."""

    admin_url: str | None = None
    """The URL of Pulsar's web service. None: port 8080 of the first host, or HTTPS and 8443 with `pulsar+ssl:`."""
    partitions: int = 1
    """How many partitions a topic gets that is created without saying it, also by its first record. A topic of one
    partition is created without partitions, as Pulsar calls it."""
    max_age_s: float | None = None
    """New topics keep records for this long, rounded up to minutes. None: for ever. Pulsar itself would delete records
    that no subscription waits for."""
    max_bytes: int | None = None
    """New topics keep this much in each partition, rounded up to megabytes. None: everything. Pulsar requires more than
    its backlog quota, which is 10 GB by default."""
    deduplicate: bool = False
    """Records that are sent again after a lost connection are stored once. New topics get Pulsar's deduplication;
    appending to a topic without it is refused."""
    read_compacted: bool = False
    """Read the compacted topic: of each key, what compaction has kept, and everything since it last ran."""
    compression: Literal["none", "lz4", "zlib", "zstd", "snappy"] = "none"
    """How appended batches are compressed."""
    batch_records: int = 1_000
    """The most records in one batch. 1: each record is an entry of its own."""
    batch_bytes: int = 128 << 10
    """The most bytes in one batch. A larger record is sent alone."""
    linger_ms: int = 1
    """How long a batch waits for more records. Longer makes larger batches, and delays acknowledgements."""
    prefetch: int = 1_000
    """How many messages the broker sends ahead of a reader; fewer where messages are large."""
    timeout_s: float = 10.0
    """How long a connection and an answer may take. Longer hides short outages, and delays the error."""
    delivery_timeout_s: float = 120.0
    """How long a record may wait for its acknowledgement before its receipt fails."""
    listener_name: str | None = None
    """Which of the broker's advertised listeners to use. None: the default one."""
    token: str | None = field(default=None, repr=False)
    """A JSON web token. None: the password of a URL without a user, `PULSAR_TOKEN` of the environment, or the file that
    `PULSAR_CLIENT_CONF` names."""
    token_file: str | None = None
    """A file with a token, which is read again for each new connection."""
    tls_ca: str | None = None
    """`pulsar+ssl:`: a file of CA certificates, in place of those that come with the client."""
    tls_cert: str | None = None
    """`pulsar+ssl:`: the client's certificate, with which it logs in unless there is a token or a user."""
    tls_key: str | None = None
    """`pulsar+ssl:`: the key of the client's certificate."""
    tls_verify: bool = True
    """`pulsar+ssl:`: false accepts any certificate, and so any server in the middle."""
    tls_check_hostname: bool = True
    """`pulsar+ssl:`: whether the certificate must name the host."""

    @property
    def retention_minutes(self) -> int:
        return UNLIMITED if self.max_age_s is None else math.ceil(self.max_age_s / _MINUTE_S)

    @property
    def retention_mb(self) -> int:
        return UNLIMITED if self.max_bytes is None else math.ceil(self.max_bytes / _MB)

    def __post_init__(self) -> None:
        check_counts(self, "partitions", "max_bytes", "batch_records", "batch_bytes", "linger_ms", "prefetch")
        check_seconds(self, "max_age_s", "timeout_s", "delivery_timeout_s")
        if self.token is not None and self.token_file is not None:
            raise ConfigError("give either token or token_file, not both")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: give both or none")
        if self.admin_url is not None and not self.admin_url.startswith(("http://", "https://")):
            raise ConfigError(f"admin_url={self.admin_url!r} must be an http:// or https:// URL")
