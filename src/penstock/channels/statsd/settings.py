"""Settings of `statsd:` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.channels.datagram_socket import LARGEST_DATAGRAM_BYTES
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsdSettings:
    """Settings of a `statsd:` URL."""

    transport: Literal["udp", "tcp"] = "udp"
    """How metrics arrive, and are sent."""
    flush_s: float = 0.0
    """Aggregate for this many seconds, as StatsD does, and give a record for each metric that had a value. 0: a record
    for each value."""
    percentiles: str = "90"
    """Percentiles of a timer's values, with flush_s, separated by commas."""
    max_series: int = 10_000
    """With flush_s: how many metrics (name, kind and tags) are aggregated. Values of others are dropped."""
    buffer: int = 100_000
    """How many records wait for `listen`. When it is full, records are dropped; senders by TCP have to wait instead."""
    socket_buffer_bytes: int = 8 << 20
    """With UDP: the receive buffer that is asked of the system; it may give less (on Linux, see net.core.rmem_max)."""
    max_connections: int = 1_024
    """With TCP: how many senders are connected. More are disconnected."""
    insecure: bool = False
    """Allow listening where other machines can send to: StatsD has no login."""
    datagram_bytes: int = 1_432
    """How large a datagram of several metrics becomes when they are sent."""
    connect_timeout_s: float = 5.0
    """How long `send` waits for a connection by TCP, and for the receiver to take what was sent."""

    def __post_init__(self) -> None:
        if self.flush_s < 0:
            raise ConfigError(f"flush_s={self.flush_s} must not be negative")
        for name in ("max_series", "buffer", "socket_buffer_bytes", "max_connections", "connect_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")
        if not 1 <= self.datagram_bytes <= LARGEST_DATAGRAM_BYTES:
            raise ConfigError(
                f"datagram_bytes={self.datagram_bytes} must be an integer from 1 to {LARGEST_DATAGRAM_BYTES}"
            )
        self.percentages  # noqa: B018  # raises ConfigError

    @property
    def percentages(self) -> tuple[float, ...]:
        """The percentiles as numbers."""
        try:
            found = tuple(float(each) for each in self.percentiles.split(",") if each.strip())
        except ValueError:
            found = (0.0,)
        if not all(0 < each <= 100 for each in found):
            raise ConfigError(f"percentiles={self.percentiles!r} must be numbers above 0, up to 100, such as 50,99.9")
        return found
