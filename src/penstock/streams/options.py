"""How a connection behaves: every option with its default and what it trades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from penstock.errors import ConfigError

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_FROM_THE_URL: Final = "comes from the URL: write it there"
_COMMITS: Final = "is Penstock's own: it commits what was handled, and nothing else"
_STARTS: Final = "is Penstock's own: say where to begin with start="
OWN: Final = {
    "bootstrap.servers": _FROM_THE_URL,
    "metadata.broker.list": _FROM_THE_URL,
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.offset.reset": _STARTS,
    "enable.partition.eof": "is Penstock's own: it must hear of the end of a partition",
    "group.id": "is Penstock's own: say group=",
    "transactional.id": "is Penstock's own: say transactional_id=",
    "plugin.library.paths": "cannot be used: librdkafka's plugins would come between it and Penstock",
}
"""Settings of librdkafka that nobody else may set, and why."""


class ConnectOptions(TypedDict, total=False):
    """The options of `connect`, by their names. Each is explained at `Options`."""

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
    """What `connect` takes beside the URL."""

    client_id: str = "penstock"
    """The name under which the broker knows this client."""

    acks: Literal["all", 0, 1] = "all"
    """What `send` waits for: "all", the record survives a power cut and is never stored twice; 1, it survives a killed
    broker; 0, nothing is known about it."""

    compression: str = "none"
    """none, gzip, snappy, lz4 or zstd: less to store and to carry, for more work at both ends."""

    linger_ms: float = 5.0
    """How long a record may wait for others to fill its batch. Nothing lingers while somebody waits for a receipt."""

    delivery_timeout_s: float = 120.0
    """How long a record is tried before its receipt says that it failed."""

    connect_timeout_s: float = 30.0
    """How long `connect` waits for a broker: to answer, or to start and recover its folder."""

    exit_when_idle_s: float = 10.0
    """For log: URLs: a broker that is started for this connection ends after so long without any client."""

    librdkafka: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    """Settings of librdkafka by its own names, such as "security.protocol"; they win over everything above, and over
    those that the URL, or a file of settings, has for it."""

    def __post_init__(self) -> None:
        if self.acks not in ("all", 0, 1) or isinstance(self.acks, bool):
            raise ConfigError(f'acks {self.acks!r} is not allowed: use "all", 1 or 0')
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression {self.compression!r} is not one of {', '.join(COMPRESSIONS)}")
        for name, least in (
            ("linger_ms", 0),
            ("delivery_timeout_s", 0),
            ("connect_timeout_s", 0),
            ("exit_when_idle_s", 0.1),
        ):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} {getattr(self, name)!r} is less than {least}")
        if self.delivery_timeout_s * 1000 <= self.linger_ms:
            raise ConfigError("delivery_timeout_s is no longer than linger_ms: no record would ever be sent")
        for name in self.librdkafka:
            if name in OWN:
                raise ConfigError(f"the librdkafka setting {name} {OWN[name]}")


def options_of(given: ConnectOptions) -> Options:
    """The options that were given, and the defaults of the others. ConfigError for a name that is none."""
    known = list(ConnectOptions.__annotations__)
    for name in given:
        if name not in known:
            raise ConfigError(f"connect has no option {name!r}; it has {', '.join(known)}")
    return Options(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
