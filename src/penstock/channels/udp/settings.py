"""Settings of `udp:` URLs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.channels.datagram_socket import LARGEST_DATAGRAM_BYTES, ResolvedAddress, check_listening
from penstock.channels.udp.ordering import LARGEST_RECORD_BYTES
from penstock.errors import ConfigError

_SHORTEST_DATAGRAM_BYTES: Final = 256
_SHORTEST_SECRET: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpSettings:
    """Settings of a `udp:` URL."""

    interface: str | None = None
    """For a multicast group: the network interface, by its name or an IPv4 address. None: the system chooses."""
    ttl: int = 1
    """For a multicast group: how many networks the packets may pass through. 1: the local network."""
    source: str | None = None
    """For a sender: the address HOST:PORT that it sends from, where receivers ask for missing packets. None: any free
    port."""
    datagram_bytes: int = 1_400
    """The size of a datagram, at most. Records of one `send` share datagrams. 1400 fits into the packets of common
    networks; on loopback, and where all machines have jumbo frames, more is faster."""
    max_record_bytes: int = 0
    """Records that do not fit into a datagram are sent in parts, up to this size. 0: they are refused."""
    rate_bytes_per_s: int = 0
    """A sender sends no faster. 0: as fast as it can, which may be faster than receivers and switches can follow."""
    history_bytes: int = 64 << 20
    """How much a sender keeps of what it sent last, for receivers that ask for it."""
    repair_packets_per_s: int = 20_000
    """A sender repeats no more packets than that; a single receiver gets at most half."""
    heartbeat_s: float = 1.0
    """An idle sender tells the number of its last packet this often, and more often right after it."""
    linger_s: float = 0.5
    """A closed sender answers receivers until none has asked for packets for this long, or for 10 times as long in
    all."""
    reorder_s: float = 0.005
    """How long a receiver waits for a packet that may only be late, before it asks for it."""
    recover_s: float = 5.0
    """How long a receiver asks for a missing packet; then its records are lost, and later ones are delivered."""
    reorder_bytes: int = 16 << 20
    """What a receiver keeps of all senders while earlier packets are missing."""
    buffer: int = 100_000
    """How many records wait for `listen`. When it is full, packets are asked for later, or lost with raw=true."""
    socket_buffer_bytes: int = 8 << 20
    """The receive buffer that is asked of the system; it may give less (on Linux, see net.core.rmem_max)."""
    max_senders: int = 1_024
    """Sessions of senders that a receiver remembers. More are ignored while the others are active."""
    secret_env: str | None = None
    """The environment variable with the secret that packets are signed with (HMAC-SHA-256); others are ignored.
    Several, separated by spaces or lines: each is accepted, so that one can be replaced, and the first one signs."""
    secret_file: str | None = None
    """A file with the secrets, instead of `secret_env`."""
    insecure: bool = False
    """Allow listening, without a secret, where other machines can send to."""
    raw: bool = False
    """Each datagram is the value of a record: for other programs. Nothing is recovered, and losses are not known."""

    def __post_init__(self) -> None:
        if not 0 <= self.ttl <= 255:
            raise ConfigError(f"ttl={self.ttl} must be an integer from 0 to 255")
        if not _SHORTEST_DATAGRAM_BYTES <= self.datagram_bytes <= LARGEST_DATAGRAM_BYTES:
            raise ConfigError(
                f"datagram_bytes={self.datagram_bytes} must be an integer from {_SHORTEST_DATAGRAM_BYTES} to "
                f"{LARGEST_DATAGRAM_BYTES}"
            )
        if not 0 <= self.max_record_bytes <= LARGEST_RECORD_BYTES:
            raise ConfigError(
                f"max_record_bytes={self.max_record_bytes} must be an integer from 0 to {LARGEST_RECORD_BYTES}"
            )
        if self.raw and self.max_record_bytes:
            raise ConfigError("max_record_bytes needs packets of this protocol: it cannot be used with raw=true")
        for name in ("rate_bytes_per_s", "history_bytes", "linger_s", "reorder_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be negative")
        for name in (
            *("repair_packets_per_s", "heartbeat_s", "recover_s", "reorder_bytes", "buffer"),
            *("socket_buffer_bytes", "max_senders"),
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")
        if self.secret_env is not None and self.secret_file is not None:
            raise ConfigError("secret_env and secret_file exclude each other: choose one")
        if self.raw and (self.secret_env is not None or self.secret_file is not None):
            raise ConfigError("a secret needs packets of this protocol: it cannot be used with raw=true")

    def check_listening(self, endpoint: ResolvedAddress) -> None:
        """Raise ConfigError if strangers could send records to this address."""
        check_listening(
            endpoint,
            self.interface,
            allow="add insecure=true" if self.raw else "set secret_env or secret_file, or add insecure=true",
            insecure=self.insecure or self.secret_env is not None or self.secret_file is not None,
        )

    def secrets(self) -> tuple[bytes, ...]:
        """The secrets from the environment or the file; none if packets are not signed. ConfigError if they cannot
        be used."""
        if self.secret_file is not None:
            whose = self.secret_file
            try:
                text = Path(self.secret_file).expanduser().read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"secret_file={self.secret_file} cannot be read: {error}") from error
        elif self.secret_env is not None:
            whose, text = f"${self.secret_env}", os.environ.get(self.secret_env, "")
        else:
            return ()
        found = tuple(each.encode() for each in text.split())
        if not found or min(map(len, found)) < _SHORTEST_SECRET:
            raise ConfigError(f"{whose} must hold a secret of at least {_SHORTEST_SECRET} characters")
        return found
