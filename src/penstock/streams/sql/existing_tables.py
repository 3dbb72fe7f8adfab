"""Existing tables of the user, as a stream that is only read. What differs between databases is behind `RowSource`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.abc import Feature, Features
from penstock.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Receipt, check_topic_name
from penstock.streams.adapting.polled_topic import PolledTopic, Wakeups
from penstock.streams.sql.row_batch import Row, RowBatch
from penstock.streams.sql.topic_tables import Database, DatabaseStream, TopicSettings

LOWEST: Final = 1
"""Where an empty table begins. A read from here or before never says that rows were deleted."""


class RowSource(Database, Protocol):
    """The statements of one database. All raise BrokerUnavailableError when it cannot be reached, UnknownTopicError for
    a table that does not exist, and ConfigError for one that cannot be read as the settings say."""

    def check_table(self, table: str) -> None: ...

    def final_end(self, table: str, beyond: Pointer) -> Pointer:
        """The pointer before which no row will appear any more. It is only looked for again when the one known is not
        behind `beyond`."""

    def fetch(self, table: str, start: Pointer, end: Pointer, limit: int) -> list[Row]: ...

    def first(self, table: str) -> Pointer | None: ...

    def last_given(self, table: str) -> Pointer | None:
        """The last id that the table's sequence gave; None if that is not known."""

    def at_time(self, table: str, time_ms: int) -> Pointer | None: ...


class ExistingTopic(PolledTopic):
    """One table, as `abc.TopicStream` with one partition."""

    def __init__(
        self, table: str, rows: RowSource, wakeups: Wakeups, poll_interval_s: float, settings: TopicSettings
    ) -> None:
        super().__init__(table, wakeups, poll_interval_s)
        self.features = features_of(settings)
        self._rows = rows
        self._settings = settings

    def partitions(self) -> Sequence[int]:
        self._check_open()
        self._rows.check_table(self.topic)
        return (0,)

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        self._check_partition(partition)
        end = self._rows.final_end(self.topic, beyond=1 << 64)
        first = self._rows.first(self.topic)
        return (end if first is None else min(first, end)), end

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        self._check_open()
        raise ConfigError(
            f"table {self.topic!r} is read only: insert rows with SQL, or omit id_column to write to topic tables"
        )

    def _at_time(self, partition: int, time_ms: int) -> Pointer:
        end = self.span(partition)[1]
        if not self._settings.timestamp_column:
            raise ConfigError(f"table {self.topic!r} cannot be read from a time: name its timestamp_column in the URL")
        found = self._rows.at_time(self.topic, time_ms)
        return end if found is None else min(found, end)

    def _batch(self, partition: int, start: Pointer, limit: int) -> Batch:
        self._check_partition(partition)
        end = self._rows.final_end(self.topic, beyond=start + limit)
        rows = self._rows.fetch(self.topic, start, end, limit) if start < end else []
        if not rows or rows[0][0] != start:
            self._check_in_range(start, end)
        following = rows[-1][0] + 1 if len(rows) == limit else max(start, end)
        return RowBatch(self.topic, 0, start, following, rows)

    def _check_in_range(self, start: Pointer, end: Pointer) -> None:
        first = self._rows.first(self.topic)
        is_before_first = first is not None and LOWEST < start < first and self._settings.deleted_rows == "error"
        given = self._rows.last_given(self.topic) if start > end else None
        if is_before_first or (given is not None and start > given + 1):
            raise OffsetOutOfRangeError(f"{self.topic}-0", start, end if first is None else first, end)

    def _check_partition(self, partition: int) -> None:
        self._check_open()
        self._rows.check_table(self.topic)
        if partition != 0:
            raise UnknownTopicError(f"table {self.topic!r} has no partition {partition}: tables have one, number 0")


class ExistingStream(DatabaseStream):
    """The tables of one database that have the columns of the settings, as `abc.Stream`."""

    def __init__(
        self,
        url: str,
        rows: RowSource,
        wakeups: Wakeups,
        *,
        checkpoint_url: str,
        poll_interval_s: float,
        settings: TopicSettings,
    ) -> None:
        super().__init__(url, rows, wakeups, checkpoint_url=checkpoint_url, poll_interval_s=poll_interval_s)
        self.features = features_of(settings)
        self._rows = rows
        self._settings = settings

    def open_topic(self, topic: str) -> ExistingTopic:
        self._check_open()
        check_topic_name(topic)
        return ExistingTopic(topic, self._rows, self._wakeups, self._poll_interval_s, self._settings)

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        self._check_open()
        raise ConfigError(
            f"table {topic!r} was not created: with id_column, existing tables are read and nothing is written; "
            "omit it to create topic tables"
        )


def features_of(settings: TopicSettings) -> Features:
    found = {Feature.DURABLE}
    if settings.key_column:
        found.add(Feature.KEYS)
    if settings.timestamp_column:
        found.add(Feature.TIMES)
    return frozenset(found)
