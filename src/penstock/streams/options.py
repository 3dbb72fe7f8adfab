"""The options of `connect`, with their defaults and trade-offs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

from penstock.errors import ConfigError

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_FROM_THE_URL: Final = "comes from the URL: set it there"
_COMMITS: Final = "is set by Penstock, which commits only what was handled"
_STARTS: Final = "is set by Penstock: choose with start="
OWN: Final = {
    "bootstrap.servers": _FROM_THE_URL,
    "metadata.broker.list": _FROM_THE_URL,
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.offset.reset": _STARTS,
    "enable.partition.eof": "is set by Penstock, which needs these events",
    "group.id": "is set by Penstock: choose with group=",
    "transactional.id": "is set by Penstock: choose with transactional_id=",
    "plugin.library.paths": "is not supported: plugins could change what Penstock relies on",
}
"""Settings of librdkafka that users may not set, and why."""


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`. `Options` explains them."""

    client_id: str
    acks: Literal["all", 0, 1]
    compression: str
    linger_ms: float
    delivery_timeout_s: float
    connect_timeout_s: float
    exit_when_idle_s: float | None
    librdkafka: Mapping[str, str | int | float | bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `connect`."""

    client_id: str = "penstock"
    """The name of this client in the broker's logs and metrics."""

    acks: Literal["all", 0, 1] = "all"
    """What an acknowledgement means: "all", the record survives a power cut and is stored once; 1, it survives a killed
    broker; 0, the record was sent."""

    compression: str = "none"
    """none, gzip, snappy, lz4 or zstd: trades CPU time at both ends for disk space and bandwidth."""

    linger_ms: float = 5.0
    """How long a record may wait for others to fill its batch. Waiting for a receipt ends it."""

    delivery_timeout_s: float = 120.0
    """How long delivery of a record is retried before its receipt fails."""

    connect_timeout_s: float = 30.0
    """How long `connect` waits for a broker to answer, or to start and recover its folder."""

    exit_when_idle_s: float = 10.0
    """For log: URLs: a broker started for this connection stops after this time without clients."""

    librdkafka: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    """Settings of librdkafka by its own names, such as "security.protocol". They override all options above, and the
    settings of the URL and its file."""

    def __post_init__(self) -> None:
        if not isinstance(self.client_id, str):
            raise ConfigError(f"client_id={self.client_id!r} must be text")
        if not isinstance(self.librdkafka, Mapping):
            raise ConfigError(f"librdkafka={self.librdkafka!r} is not a mapping of settings: pass {{'name': value}}")
        if self.acks not in ("all", 0, 1) or isinstance(self.acks, bool):
            raise ConfigError(f'acks={self.acks!r} must be "all", 1 or 0')
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression={self.compression!r} must be one of {', '.join(COMPRESSIONS)}")
        for name, least in (
            ("linger_ms", 0),
            ("delivery_timeout_s", 0),
            ("connect_timeout_s", 0),
            ("exit_when_idle_s", 0.1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{name}={value!r} must be a number")
            if not value >= least:
                raise ConfigError(f"{name}={value!r} must be >= {least}")
        if self.delivery_timeout_s * 1000 <= self.linger_ms:
            raise ConfigError("delivery_timeout_s must be longer than linger_ms: no record would ever be sent")
        for name in self.librdkafka:
            if name in OWN:
                raise ConfigError(f"the librdkafka setting {name} {OWN[name]}")


def options_of(given: Mapping[str, Any]) -> Options:
    """The given options, with defaults for the others. Raises ConfigError for an unknown name."""
    known = list(ConnectOptions.__annotations__)
    for name in given:
        if name not in known:
            raise ConfigError(f"connect has no option {name!r}; it has {', '.join(known)}")
    return Options(**{name: value for name, value in given.items() if value is not None})
