"""Reading a topic with bounds: on records, on bytes and on time, whatever is in it.

librdkafka is told to fetch little ahead, so that a topic of large records does not fill the memory: at any time there
are some megabytes under way, and what was looked at is let go of at once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.console.link import Link
from penstock.console.views import Isolation
from penstock.errors import ConfigError
from penstock.model import Record
from penstock.streams.kafka.feed import KafkaFeed
from penstock.streams.kafka.topics import Offsets, TopicAdministration

_AHEAD_RECORDS: Final = 2_000
_AHEAD_KB: Final = 4 * 1024
_FETCH_BYTES: Final = 8 * 1024 * 1024
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_SHORT_MS: Final = 5
"""While the broker waits for more at the end of one partition, nothing of the others is fetched."""


@dataclass(slots=True)
class Budget:
    """How much may be looked at for one page, and how much has been."""

    records: int
    size_bytes: int
    time_s: float
    scanned: int = 0
    scanned_bytes: int = 0
    begun_s: float = field(default_factory=time.monotonic)

    def spend(self, size_bytes: int) -> None:
        self.scanned += 1
        self.scanned_bytes += size_bytes

    def refund(self, records: int, size_bytes: int) -> None:
        """These will be looked at again."""
        self.scanned -= records
        self.scanned_bytes -= size_bytes

    @property
    def left_s(self) -> float:
        return max(0.0, self.begun_s + self.time_s - time.monotonic())

    @property
    def is_spent(self) -> bool:
        return self.scanned >= self.records or self.scanned_bytes >= self.size_bytes or self.left_s <= 0

    def note(self) -> str:
        """Where it stopped, for people."""
        took_s = time.monotonic() - self.begun_s
        size = f"{self.scanned_bytes / 1e6:,.0f} MB" if self.scanned_bytes >= 1e6 else f"{self.scanned_bytes:,} bytes"
        return f"looked at {self.scanned:,} records ({size}) in {took_s:.1f} s, and stopped there: go on from here?"


def size_of(record: Record) -> int:
    """The bytes of a record's key, value and headers."""
    size_bytes = len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size_bytes += len(name) + len(content or b"")
    return size_bytes


class BoundedFeed(KafkaFeed):
    """A feed that fetches little ahead, of partitions that are known to be there. Who opens it closes it."""

    def __init__(
        self, link: Link, topic: str, partitions: Iterable[int], isolation: Isolation, *, fetch_wait_ms: int = _SHORT_MS
    ) -> None:
        if isolation not in ("committed", "uncommitted"):
            raise ConfigError(f"isolation is committed or uncommitted, not {isolation!r}")
        connection = link.connection()
        options = dataclasses.replace(
            connection.options,
            librdkafka={
                **connection.options.librdkafka,
                "isolation.level": f"read_{isolation}",
                "queued.max.messages.kbytes": _AHEAD_KB,
                "fetch.max.bytes": _FETCH_BYTES,
                "fetch.message.max.bytes": _PARTITION_FETCH_BYTES,
                "fetch.wait.max.ms": fetch_wait_ms,
            },
        )
        super().__init__(connection.bootstrap, options, topic, link.topics(), _AHEAD_RECORDS)
        self._known.update(partitions)


def ends_of(topics: TopicAdministration, topic: str, partitions: tuple[int, ...], isolation: Isolation) -> Offsets:
    """Where each partition ends for who reads with this isolation."""
    if isolation == "uncommitted":
        return topics.ends(topic, partitions)
    return topics.latest(topic, partitions)
