"""Every setting of a producer, with its default and trade-off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.errors import ConfigError
from penstock.model.retry import Retry
from penstock.streams.options import COMPRESSIONS

WhenFull = Literal["block", "drop_oldest", "drop_newest", "error"]
SpoolFlush = Literal["os", "fsync"]

WHEN_FULL: Final = ("block", "drop_oldest", "drop_newest", "error")
SPOOL_FLUSHES: Final = ("os", "fsync")
_RETRY: Final = Retry(attempts=None, max_delay_s=10.0)
MOST_IN_FLIGHT_IN_ORDER: Final = 5
"""A Kafka broker remembers the last five batches of an idempotent producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What `Producer` takes besides the stream and the buffer."""

    linger_ms: float = 5.0
    """How long a record may wait for others to fill its batch. It does not wait while a caller waits for a receipt."""

    batch_records: int = 10_000
    """Records in a batch at most. Larger batches cost less per record, and are repeated whole after a failure."""

    batch_bytes: int = 1_000_000
    """Bytes in a batch at most, and in one request to a Kafka broker."""

    compression: str | None = None
    """none, gzip, snappy, lz4 or zstd; None: as the connection says. Only for streams that compress."""

    max_request_bytes: int = 1_048_576
    """`send` refuses a larger record. Kafka's default limit is about the same."""

    in_flight: int | None = None
    """Batches that may be in flight at once: 5 for an idempotent producer on Kafka, which keeps them in order, and 1
    for any other, so that a retried batch is not overtaken. Higher values are refused."""

    when_full: WhenFull = "block"
    """What `send` does while the buffer is full: wait, drop the oldest record that is not in flight, drop this one, or
    raise at once. Drops are counted, and their receipts fail."""

    max_block_s: float = 60.0
    """How long `send` waits for room before it raises BufferFullError."""

    buffer_records: int = 1_000_000
    """Records in the buffer at most. Each has a receipt in memory, of about 200 bytes."""

    buffer_bytes: int = 256 << 20
    """Bytes in the buffer at most; for a spool, of its files without one segment."""

    delivery_timeout_s: float = 120.0
    """How long a record in memory is retried before its receipt fails. A record in a spool is retried until it is
    acknowledged or rejected for good."""

    retry: Retry = _RETRY
    """The delays between attempts. `attempts` must be None: `delivery_timeout_s` limits the attempts."""

    idempotent: bool | None = None
    """True: no record is stored twice; refused if the stream cannot guarantee it. None: if the stream can. False: a
    retried record may be stored twice."""

    transactional_id: str | None = None
    """The name under which the brokers know this producer; every record is sent in a transaction. A second producer
    with the same id fences the first."""

    spool_flush: SpoolFlush | None = None
    """When a record is safe in the spool. "os", the default: once the operating system has it, so it survives the
    process. "fsync": once the disk has it, so it survives a power cut."""

    def __post_init__(self) -> None:
        _check_choice("when_full", self.when_full, WHEN_FULL)
        if self.spool_flush is not None:
            _check_choice("spool_flush", self.spool_flush, SPOOL_FLUSHES)
        if self.compression is not None:
            _check_choice("compression", self.compression, COMPRESSIONS)
        for name in ("batch_records", "batch_bytes", "max_request_bytes", "buffer_records", "buffer_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be an integer >= 1")
        for name in ("linger_ms", "max_block_s", "delivery_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name}={value!r} must be a number >= 0")
        if not isinstance(self.retry, Retry):
            raise ConfigError(f"retry={self.retry!r} is not a Retry")
        if self.retry.attempts is not None or self.retry.on:
            raise ConfigError(
                "retry: a producer retries until delivery_timeout_s, whatever the error: use Retry(attempts=None, ...) "
                "without on"
            )
        if self.retry.first_delay_s <= 0 or self.retry.max_delay_s <= 0:
            raise ConfigError("retry: the delays of a producer must be positive")
        if self.idempotent is not None and not isinstance(self.idempotent, bool):
            raise ConfigError(f"idempotent={self.idempotent!r} must be True, False or None")
        if self.transactional_id is not None and (
            not isinstance(self.transactional_id, str) or not self.transactional_id
        ):
            raise ConfigError(f"transactional_id={self.transactional_id!r} must be text that is not empty")
        if self.transactional_id is not None and self.idempotent is False:
            raise ConfigError("transactional_id with idempotent=False: transactions need idempotence")
        most = 1 if self.idempotent is False else MOST_IN_FLIGHT_IN_ORDER
        if self.in_flight is not None and self.in_flight not in range(1, most + 1):
            raise ConfigError(
                f"in_flight={self.in_flight!r}: use 1 to {MOST_IN_FLIGHT_IN_ORDER}, or 1 with idempotent=False; "
                "records could not be kept in order otherwise"
            )
        if self.delivery_timeout_s * 1000 <= self.linger_ms:
            raise ConfigError("delivery_timeout_s must be longer than linger_ms, or no record would ever be sent")
        if self.max_request_bytes > self.buffer_bytes:
            raise ConfigError("max_request_bytes must be at most buffer_bytes, or such a record would never fit")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")
