"""How a producer behaves: every setting with its default and what it trades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import ConfigError
from penstock.producing.backoff import Backoff
from penstock.streams.options import COMPRESSIONS

WhenFull = Literal["block", "drop_oldest", "drop_newest", "error"]
SpoolFlush = Literal["os", "fsync"]

WHEN_FULL: Final = ("block", "drop_oldest", "drop_newest", "error")
SPOOL_FLUSHES: Final = ("os", "fsync")
_BACKOFF: Final = Backoff()
MOST_IN_FLIGHT_IN_ORDER: Final = 5
"""A Kafka broker remembers the last five batches of an idempotent producer, and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What `Producer` takes beside the stream and the buffer."""

    linger_ms: float = 5.0
    """How long a record may wait for others to fill its batch. Nothing lingers while somebody waits for a receipt."""

    batch_records: int = 10_000
    """Records in a batch at most. Larger ones cost less each, and are repeated whole when something goes wrong."""

    batch_bytes: int = 1_000_000
    """Bytes in a batch at most, and of one request to a Kafka broker."""

    compression: str | None = None
    """none, gzip, snappy, lz4 or zstd; None: what the connection says. Only for streams that compress."""

    max_request_bytes: int = 1_048_576
    """A record with more bytes than this is refused by `send`. Kafka's topics take as much, unless told otherwise."""

    in_flight: int | None = None
    """Batches that may be under way at once: 5 for an idempotent producer on Kafka, which keeps as many in order, and 1
    for any other, or a batch that is tried again could be overtaken. More than that is refused."""

    when_full: WhenFull = "block"
    """What `send` does when the buffer is full: wait, drop the oldest that is not under way, drop this one, or raise
    at once. Drops are counted, and their receipts fail."""

    max_block_s: float = 60.0
    """How long `send` waits for room before it raises BufferFullError."""

    buffer_records: int = 1_000_000
    """Records in the buffer at most. Each that waits has a receipt in memory, of some 200 bytes."""

    buffer_bytes: int = 256 << 20
    """Bytes in the buffer at most; for a spool, of its files, but for a segment."""

    delivery_timeout_s: float = 120.0
    """How long a record in memory is tried before its receipt fails. What is in a spool is tried until it succeeds, or
    is refused for good."""

    retry: Backoff = _BACKOFF
    """The waits between attempts."""

    idempotent: bool | None = None
    """True: no record is stored twice, or the producer is refused where the stream cannot do this. None: where the
    stream can. False: a record that is tried again may be stored twice."""

    transactional_id: str | None = None
    """The name under which the brokers know this producer; everything goes in transactions. One producer has it at a
    time: a second one fences the first."""

    spool_flush: SpoolFlush | None = None
    """When a record counts as kept by the spool. "os", the default: when the operating system has it, so it survives
    the process. "fsync": when the disk has it, so it survives a power cut."""

    def __post_init__(self) -> None:
        _check_choice("when_full", self.when_full, WHEN_FULL)
        if self.spool_flush is not None:
            _check_choice("spool_flush", self.spool_flush, SPOOL_FLUSHES)
        if self.compression is not None:
            _check_choice("compression", self.compression, COMPRESSIONS)
        for name in ("batch_records", "batch_bytes", "max_request_bytes", "buffer_records", "buffer_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} is not a whole number of at least 1")
        for name in ("linger_ms", "max_block_s", "delivery_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name}={value!r} is not a number of at least 0")
        if not isinstance(self.retry, Backoff):
            raise ConfigError(f"retry={self.retry!r} is no Backoff")
        if self.idempotent is not None and not isinstance(self.idempotent, bool):
            raise ConfigError(f"idempotent={self.idempotent!r} is not True, False or None")
        if self.transactional_id is not None and (
            not isinstance(self.transactional_id, str) or not self.transactional_id
        ):
            raise ConfigError(f"transactional_id={self.transactional_id!r} is no name")
        if self.transactional_id is not None and self.idempotent is False:
            raise ConfigError("transactional_id with idempotent=False: transactions rest on idempotence")
        most = 1 if self.idempotent is False else MOST_IN_FLIGHT_IN_ORDER
        if self.in_flight is not None and self.in_flight not in range(1, most + 1):
            raise ConfigError(
                f"in_flight={self.in_flight!r}: use 1 to {MOST_IN_FLIGHT_IN_ORDER}, or 1 with idempotent=False; "
                "records could not be kept in order otherwise"
            )
        if self.delivery_timeout_s * 1000 <= self.linger_ms:
            raise ConfigError("delivery_timeout_s is no longer than linger_ms: no record would ever be sent")
        if self.max_request_bytes > self.buffer_bytes:
            raise ConfigError("max_request_bytes is more than buffer_bytes: such a record would never fit")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")
