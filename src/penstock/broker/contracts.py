"""What the coordinators need from the rest of the broker, and nothing more.

The group and transaction coordinators are state machines: requests and timers come in, answers and records go out.
They own no socket, no file and no clock. Everything they touch stands here as a small Protocol, so a test can drive
them with a virtual clock and an in-memory topic, and the broker hands them the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Timer(Protocol):
    """A call that has been scheduled and can still be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time as the broker sees it. Nothing in this room reads the system's clock in any other way."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards: for timeouts."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that are stored."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of an internal topic, as it stands in the log."""

    partition: int
    base_offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    control: str | None
    """`"commit"` or `"abort"` for a transaction marker (then `records` is empty), None for data."""
    records: Sequence[tuple[bytes, bytes | None]]


class InternalTopic(Protocol):
    """A compacted topic that a coordinator keeps its state in (`__consumer_offsets`, `__transaction_state`)."""

    partition_count: int

    async def append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        """Write the records as one batch. Durable (as `acks=all` is) when it returns; raises StorageError otherwise.

        The records are in the log in the order of the calls, also when several calls are awaited at once.
        """

    def replay(self) -> Iterator[StoredBatch]:
        """Everything the topic holds, oldest first within each partition. For start-up only."""


class Partitions(Protocol):
    """What the transaction coordinator asks of the partitions that take part in a transaction."""

    def exists(self, topic: str, partition: int) -> bool: ...

    async def write_markers(
        self,
        partitions: Iterable[tuple[str, int]],
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Append a commit or abort marker to each partition and return once all of them are durable.

        A partition that has been deleted meanwhile is passed over. Writing the same marker again is harmless.
        """


def java_string_hash(text: str) -> int:
    """`String.hashCode()` of Java, with which Kafka chooses the partition of an internal topic for a group or id."""
    value = 0
    encoded = text.encode("utf-16-be")
    for high, low in zip(encoded[0::2], encoded[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value


def internal_partition(key: str, partition_count: int) -> int:
    """The partition of an internal topic that keeps the state of `key`, as Kafka chooses it."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partition_count
