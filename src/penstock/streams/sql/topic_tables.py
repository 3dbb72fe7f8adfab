"""Tables that Penstock makes, as a stream. What differs between databases is behind `TopicTables`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from penstock.abc import Feature, Features
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt, check_topic_name
from penstock.streams.adapting.batch_writer import BatchWriter, Outcome
from penstock.streams.adapting.polled_topic import PolledTopic, Wakeups
from penstock.streams.adapting.stream_base import PARTITIONED_LOG, chosen_partition
from penstock.streams.backend_url import check_counts
from penstock.streams.sql.row_batch import Row, RowBatch

FEATURES: Final[Features] = PARTITIONED_LOG | {Feature.OFFSETS}
"""No IDEMPOTENCE: a commit whose answer was lost may have happened."""

OWN_PREFIX: Final = "penstock_"
MOST_PARTITIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of every `postgresql:` and `sqlite:` URL."""

    id_column: str = ""
    """Read existing tables, ordered by this integer column; nothing is written then. Empty: topic tables."""
    key_column: str = ""
    """For existing tables: the key of a record. Empty: records have no key."""
    value_columns: str = ""
    """For existing tables: the columns of the JSON object that is the value, with commas between. Empty: all."""
    payload_column: str = ""
    """For existing tables: the column whose content is the value as it is, instead of a JSON object."""
    timestamp_column: str = ""
    """For existing tables: a timestamp, or an integer of milliseconds since 1970. Empty: no positions at a time."""
    deleted_rows: Literal["error", "skip"] = "error"
    """For existing tables: `error` fails a read that begins before the first row, as rows may have been deleted there;
    `skip` goes on at the first row, for tables that are cleaned up by their owner."""
    trust_ids: bool = False
    """For existing tables: read one although its ids do not come from a sequence with CACHE 1. Rows that appear
    below an id that was read are missed then."""
    max_record_bytes: int = 64 << 20
    """Larger records are refused. Readers hold up to their limit of such records in memory."""

    @property
    def chosen_columns(self) -> list[str]:
        """The names in `value_columns`."""
        return [name.strip() for name in self.value_columns.split(",") if name.strip()]

    @property
    def wanted_columns(self) -> list[str]:
        """All columns that the settings name: an existing table must have them."""
        single = (self.id_column, self.key_column, self.payload_column, self.timestamp_column)
        return [name for name in (*single, *self.chosen_columns) if name]

    def __post_init__(self) -> None:
        check_counts(self, "max_record_bytes")
        if self.payload_column and self.value_columns:
            raise ConfigError("payload_column and value_columns exclude each other: the value is one or the other")
        if not self.id_column:
            for name in ("key_column", "value_columns", "payload_column", "timestamp_column", "trust_ids"):
                if getattr(self, name):
                    raise ConfigError(f"{name} is for existing tables: add id_column, the column that orders them")


class Database(Protocol):
    """What a stream over tables needs of its database."""

    @property
    def where(self) -> str:
        """The database, in messages."""

    def check(self) -> None:
        """Return once the database has answered."""

    def names(self) -> list[str]:
        """The tables that are topics."""

    def close(self) -> None: ...


class TopicTables(Database, Protocol):
    """The statements of one database. All raise BrokerUnavailableError when it cannot be reached."""

    def create(self, topic: str, partitions: int) -> None:
        """Create the topic. TopicExistsError if it exists."""

    def drop(self, topic: str) -> bool: ...

    def partition_count(self, topic: str) -> int:
        """The number of partitions; 0 if the topic does not exist."""

    def rows(self, topic: str, partition: int, start: Pointer, limit: int) -> list[Row]: ...

    def fetch(self, topic: str, partition: int, start: Pointer, limit: int) -> tuple[Pointer | None, list[Row]]:
        """The end of the partition and its rows from `start` on, both of one snapshot. The end is None if there is
        no such partition."""

    def span(self, topic: str, partition: int) -> tuple[Pointer | None, Pointer] | None:
        """The offset of the first row (None: no rows) and the end. None if there is no such partition."""

    def at_time(self, topic: str, partition: int, time_ms: int) -> Pointer | None: ...

    def insert(self, topic: str, records: Mapping[int, Sequence[NewRecord]]) -> dict[int, Pointer]:
        """Store records by partition, in one transaction: the offset of the first of each. Partitions that do not
        exist are left out."""


class TableTopic(PolledTopic):
    """A topic table, as `abc.TopicStream`."""

    features = FEATURES

    def __init__(
        self, topic: str, tables: TopicTables, wakeups: Wakeups, poll_interval_s: float, max_record_bytes: int
    ) -> None:
        super().__init__(topic, wakeups, poll_interval_s)
        self._tables = tables
        self._writer = BatchWriter(topic, self._write, max_record_bytes=max_record_bytes)
        self._count: int | None = None
        self._behind: set[int] = set()
        """Partitions whose last read was full."""
        self._turn = 0

    def partitions(self) -> Sequence[int]:
        self._check_open()
        count = self._tables.partition_count(self.topic)
        if not count:
            raise self._unknown()
        return range(count)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        self._check_open()
        found = self._tables.span(self.topic, partition)
        if found is None:
            raise self._unknown(partition)
        first, end = found
        return (end if first is None else first), end

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        """Records are written by a thread, together with those of other appends."""
        return self._writer.append(records)

    def close(self) -> None:
        self._writer.close()
        super().close()

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        end = self.span(partition)[1]
        found = self._tables.at_time(self.topic, partition, time_ms)
        return end if found is None else found

    def _batch(self, partition: int, start: Pointer, limit: int) -> Batch:
        if partition in self._behind:  # then rows alone will do: there is no end to compare with
            rows = self._tables.rows(self.topic, partition, start, limit)
            if rows and rows[0][0] == start:
                return RowBatch(self.topic, partition, start, rows[-1][0] + 1, rows)
        end, rows = self._tables.fetch(self.topic, partition, start, limit)
        if end is None:
            raise self._unknown(partition)
        if start != end and (not rows or rows[0][0] != start):
            self._check_in_range(partition, start)
        if len(rows) < limit:
            self._behind.discard(partition)
            return RowBatch(self.topic, partition, start, max(end, start), rows)
        self._behind.add(partition)
        return RowBatch(self.topic, partition, start, rows[-1][0] + 1, rows)

    def _check_in_range(self, partition: int, start: Pointer) -> None:
        """Offsets are dense, so a missing row was deleted. Before the first row it has expired; between others it was
        removed on purpose, and is skipped as in a compacted topic."""
        first, end = self.span(partition)
        if not first <= start <= end:
            raise OffsetOutOfRangeError(f"{self.topic}-{partition}", start, first, end)

    def _write(self, records: Sequence[NewRecord]) -> Iterable[Outcome]:
        if self._count is None:
            self._count = len(self.partitions())
        self._turn += 1
        if self._count == 1 and not any(record.partition for record in records):  # the usual case, made quick
            first = self._tables.insert(self.topic, {0: records}).get(0)
            self._wakeups.tell(self.topic)
            if first is not None:
                return zip(itertools.repeat(0, len(records)), itertools.count(first), strict=False)
            raise self._unknown()
        chosen = [chosen_partition(record, self._turn, self._count) for record in records]
        by_partition: defaultdict[int, list[NewRecord]] = defaultdict(list)
        for partition, record in zip(chosen, records, strict=True):
            by_partition[partition].append(record)
        nexts = self._tables.insert(self.topic, by_partition)
        self._wakeups.tell(self.topic)
        outcomes: list[Outcome] = []
        for partition in chosen:
            if partition in nexts:
                outcomes.append((partition, nexts[partition]))
                nexts[partition] += 1
            else:
                self._count = None  # it may have been created again, with fewer
                outcomes.append(DeliveryError(str(self._unknown(partition))))
        return outcomes

    def _unknown(self, partition: int | None = None) -> UnknownTopicError:
        count = 0 if partition is None else self._tables.partition_count(self.topic)
        if count:
            return UnknownTopicError(
                f"topic {self.topic!r} has no partition {partition}: it has {count}, numbered from 0"
            )
        return UnknownTopicError(
            f"{self._tables.where} has no topic {self.topic!r}: create it, or, to read an existing table of this name, "
            "add ?id_column=... to the URL"
        )


class DatabaseStream:
    """A part of `abc.Stream`, `abc.Reachable` and `abc.HasCheckpoints`: the tables of one database."""

    problem: str | None = None

    def __init__(
        self, url: str, database: Database, wakeups: Wakeups, *, checkpoint_url: str, poll_interval_s: float
    ) -> None:
        self.url = url
        self._database = database
        self._wakeups = wakeups
        self._checkpoint_url = checkpoint_url
        self._poll_interval_s = poll_interval_s
        self._is_closed = False

    def topics(self) -> list[str]:
        self._check_open()
        return self._database.names()

    def checkpoint_url(self, *, in_stream: bool) -> str:
        return self._checkpoint_url

    def check_reachable(self) -> None:
        self._database.check()

    def check_there(self, timeout_s: float) -> None:
        self._database.check()

    def check_usable(self) -> None:
        """Connections are replaced when they are needed."""

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._wakeups.tell_all()
            self._database.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the connection to {self._database.where} is closed: connect again")


class TableStream(DatabaseStream):
    """Topic tables of one database, as `abc.Stream`."""

    features = FEATURES

    def __init__(
        self,
        url: str,
        tables: TopicTables,
        wakeups: Wakeups,
        *,
        checkpoint_url: str,
        poll_interval_s: float,
        max_record_bytes: int,
    ) -> None:
        super().__init__(url, tables, wakeups, checkpoint_url=checkpoint_url, poll_interval_s=poll_interval_s)
        self._tables = tables
        self._max_record_bytes = max_record_bytes

    def open_topic(self, topic: str) -> TableTopic:
        self._check_open()
        check_topic_name(topic)
        return TableTopic(topic, self._tables, self._wakeups, self._poll_interval_s, self._max_record_bytes)

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._check_open()
        check_topic_name(topic)
        if topic.lower().startswith((OWN_PREFIX, "sqlite_", "pg_")):
            raise InvalidTopicError(
                f"{topic!r} cannot be a topic: tables of such names are Penstock's or the database's"
            )
        count = 1 if partitions is None else partitions
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PARTITIONS:
            raise ConfigError(f"partitions={partitions!r} must be an integer from 1 to {MOST_PARTITIONS}")
        self._tables.create(topic, count)

    def delete_topic(self, topic: str) -> None:
        """Drop the table with all of its records. Raises UnknownTopicError."""
        self._check_open()
        if not self._tables.drop(topic):
            raise UnknownTopicError(f"{self._tables.where} has no topic {topic!r}")
