"""What the coordinators need from the rest of the broker.

The group and transaction coordinators are state machines: requests and timers come in, responses and records go out.
They have no socket, file or clock of their own. Everything they use is a small Protocol here, so that tests can drive
them with a virtual clock and an in-memory topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

OFFSETS_TOPIC: Final = "__consumer_offsets"


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time in the broker. Nothing in this room reads the system's clock in any other way."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards, for timeouts."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for stored timestamps."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...


@dataclass(frozen=True, slots=True)
class StoredBatch:
    partition: int
    base_offset: int
    producer_id: int
    transactional: bool
    control: str | None
    """`"commit"` or `"abort"` for a transaction marker (then `records` is empty), None for data."""
    records: Sequence[tuple[bytes, bytes | None]]


class InternalTopic(Protocol):
    """A compacted topic with a coordinator's state (`__consumer_offsets`, `__transaction_state`)."""

    partition_count: int

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Append the records as one batch, as durable as `acks=all` when this returns. Raises StorageError.

        With a producer id, they are part of its transaction. The records are in the log in the order of the calls, even
        if several calls are awaited at once.
        """

    def replay(self) -> Iterator[StoredBatch]:
        """Everything in the topic, oldest first within each partition. For startup only."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


WriteMarkers = Callable[[Iterable[tuple[str, int]], Marker], Awaitable[None]]
"""Appends a marker to each partition, and returns once all of them are durable. A partition that was deleted in the
meantime is skipped. Writing the same marker again is harmless."""


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode()`, with which Kafka chooses the partition of an internal topic for a group or id."""
    value = 0
    encoded = text.encode("utf-16-be")
    for high, low in zip(encoded[0::2], encoded[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value


def internal_partition(key: str, partition_count: int) -> int:
    """The partition of an internal topic that holds the state of `key`, as Kafka chooses it."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partition_count
