"""`BadRowCollector`: counts the bad rows of each batch, stops the query above a limit, and puts their dead letters.

A target calls `evaluated` when the rows of a batch are computed and before anything of it is committed. So a row that
is left out of a batch has its letter before the batch counts. A batch that is repeated after a crash puts the same
letters under the same ids, so there is one for each row. While the dead letters cannot be reached, the batch fails, and
nothing is lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark import SparkContext

from penstock.dead_letters.headers import letter_id_of
from penstock.errors import BadRowsError, ConfigError
from penstock.model import DeadLetter, NewRecord, Record
from penstock.model.clock import SystemClock
from penstock.spark.errors import reports
from penstock.spark.errors.origins import parsed_origin, place_of
from penstock.spark.errors.reports import BadRow, BatchReports
from penstock.spark.sink.refused_rows import RefusedRow, RefusedRows
from penstock.spark.sink.target import QueryIdentity
from penstock.spark.values.undecodable import Letters

logger = logging.getLogger(__name__)

MOST_BAD_ROWS: Final = 10_000
"""The default of `max_bad_rows`."""
BAD_ROWS: Final = "bad rows"
"""The label under which a query puts such rows into the dead letters."""
_NEARBY: Final = 100
"""Records this close to each other are read at once."""
_NONE: Final = BatchReports((), {})

ReadRecords = Callable[[str, int, Sequence[int]], Iterable[Record]]
"""The records of a topic and partition at these pointers, without those that are gone."""


def check_limit(limit: int | float, what: str) -> None:
    """Raise ConfigError unless this is a count or a share."""
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    is_count = is_number and isinstance(limit, int) and 0 <= limit <= reports.MOST_BAD_ROWS
    is_share = isinstance(limit, float) and 0 < limit < 1
    if not (is_count or is_share):
        raise ConfigError(
            f"{what}: max_bad_rows={limit!r} must be a count from 0 to {reports.MOST_BAD_ROWS:,}, or a share of the "
            "rows of a batch between 0 and 1, such as 0.01"
        )


@dataclass(frozen=True, slots=True)
class RowLetters:
    """The dead letters for rows of one query, by the topic that a row comes from."""

    default: Letters
    """For rows whose record is unknown or gone."""
    of_topic: Callable[[str], Letters | None]
    group: str
    version: str
    read: ReadRecords

    def put(
        self, identity: QueryIdentity, batch_id: int, rows: Sequence[BadRow], stream: str | None = None
    ) -> list[NewRecord]:
        """Return when there is a letter for each row: with its record where that can be read again, else with the row
        as JSON.

        Letters in topics of the stream at the URL `stream` are not stored: the answer has their records.
        """
        records: list[NewRecord] = []
        for where, letters in self._letters_of(identity, batch_id, rows):
            if stream is not None and where.is_topic_of(stream):
                records += where.records(letters)
            else:
                where.put(letters)
        return records

    def _letters_of(
        self, identity: QueryIdentity, batch_id: int, rows: Sequence[BadRow]
    ) -> Iterator[tuple[Letters, list[DeadLetter]]]:
        known: dict[tuple[str, int], dict[int, BadRow]] = {}
        others: list[BadRow] = []
        for row in rows:
            if row.origin is None:
                others.append(row)
            else:
                topic, partition, pointer = parsed_origin(row.origin)
                known.setdefault((topic, partition), {}).setdefault(pointer, row)
        now_ms = SystemClock().wall_ms()
        for (topic, partition), by_pointer in known.items():
            found = []
            for record in self.read(topic, partition, sorted(by_pointer)):
                row = by_pointer.pop(record.offset)
                found.append(self._letter(record, row, identity, now_ms))
            others += by_pointer.values()
            if found:
                yield self.of_topic(topic) or self.default, found
        refused = RefusedRows(self.default, self.group, self.version)
        for rule in sorted({row.rule for row in others}):
            of_rule = (_refused(row) for row in others if row.rule == rule)
            yield self.default, list(refused.letters_of(identity, rule, batch_id, of_rule))

    def _letter(self, record: Record, row: BadRow, identity: QueryIdentity, now_ms: int) -> DeadLetter:
        return DeadLetter(
            id=letter_id_of(self.group, record),
            group=self.group,
            record=record,
            error=row.error,
            error_kind=row.error_kind,
            traceback=row.traceback,
            attempts=1,
            first_ms=now_ms,
            last_ms=now_ms,
            handler=f"{row.rule} in query {identity.query}",
            handler_version=self.version,
        )


def _refused(row: BadRow) -> RefusedRow:
    value = row.row if row.row is not None else json.dumps(None)
    return RefusedRow(value.encode(), row.error, row.error_kind, row.traceback)


def runs_of(pointers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Sorted pointers in runs that are worth reading at once."""
    start = 0
    for index in range(1, len(pointers) + 1):
        if index == len(pointers) or pointers[index] - pointers[index - 1] > _NEARBY:
            yield pointers[start:index]
            start = index


class BadRowCollector:
    """Collects the bad rows of the batches of one run of a query. Used by the thread that writes its batches."""

    def __init__(
        self,
        context: SparkContext,
        letters: RowLetters | None,
        limit: int | float,
        query: str,
        *,
        guards: bool,
        rows_read: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """Without `letters`, nothing is collected: a bad row fails its batch. `guards` says whether functions are
        guarded without being marked. `rows_read` maps Spark's id of the query to the rows that its batch has read."""
        self._context = context
        self._letters = letters
        self._limit = limit
        self._query = query
        self._guards = guards
        self._rows_read = rows_read
        self._rows: int | None = None
        """The rows that the batch has read: when it is computed again, Spark counts them again."""
        self._batch_id = -1
        self._reports: list[tuple[reports.Attempt, reports.TaskReport]] = []
        self._put: set[BadRow] = set()
        self._records: list[NewRecord] = []

    @property
    def collects(self) -> bool:
        """Whether there are letters for bad rows."""
        return self._letters is not None

    def begin(self, *, searching: bool = False) -> None:
        """Have the queries that this thread starts report their bad rows, if there are letters for them.

        With `searching`, also the rows that cannot be encoded for a topic by Spark.
        """
        self._batch_id = -1
        most = self._limit if isinstance(self._limit, int) else reports.MOST_BAD_ROWS
        guards = self._guards and self._letters is not None
        self._set(reports.COLLECTING, None if self._letters is None else str(most))
        self._set(reports.GUARDING, "true" if guards else None)
        self._set(reports.SEARCHING, "true" if searching and self.collects else None)

    def _set(self, name: str, value: str | None) -> None:
        self._context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it

    def evaluated(self, identity: QueryIdentity, batch_id: int, stream: str | None = None) -> list[NewRecord]:
        """Store the bad rows that the tasks of a batch have reported. Raises BadRowsError above the limit.

        The answer is for the transaction that commits the batch: letters in topics of the stream at the URL `stream`.
        """
        self._records = []
        self.found(identity, batch_id, stream)
        return self._records

    def found(self, identity: QueryIdentity, batch_id: int, stream: str | None = None) -> BatchReports:
        """What the tasks of a batch have reported, stored as by `evaluated`."""
        if self._letters is None:
            return _NONE
        if batch_id != self._batch_id:
            self._batch_id, self._reports, self._put, self._rows = batch_id, [], set(), None
        arrived = reports.store(self._context).take((query_id_of(identity), batch_id))
        if not arrived and not self._reports:
            return _NONE
        self._reports += arrived
        found = reports.combined(self._reports)
        if self._rows is None:
            self._rows = self._rows_read(query_id_of(identity)) or found.seen
        self._check(found, batch_id, self._rows)
        fresh = [row for row in found.bad if row not in self._put]
        if fresh:
            logger.warning(
                "query %s: %d rows of batch %d go to the dead letters in %s, the first one because of %s",
                self._query,
                len(fresh),
                batch_id,
                self._letters.default,
                fresh[0].error,
            )
            self._records = self._letters.put(identity, batch_id, fresh, stream)
            self._put.update(fresh)
        return found

    def _check(self, found: BatchReports, batch_id: int, rows: int) -> None:
        count = len(found.bad)
        limit = self._limit
        if isinstance(limit, int):
            if count <= limit:
                return
            allowed = f"max_bad_rows={limit:,} allows"
        else:
            if count <= limit * rows:
                return
            allowed = f"max_bad_rows={limit:g} of {rows:,} rows allows"
        worst = max(found.counts, key=lambda rule: found.counts[rule].bad)
        example = next(row for row in found.bad if row.rule == worst)
        where = "" if example.origin is None else f" for {place_of(example.origin)}"
        raise BadRowsError(
            f"query {self._query}: {count:,} rows of batch {batch_id} are bad, more than {allowed}; most of them fail "
            f"{worst}, such as{where}: {example.error}. Nothing of the batch was written to an exactly-once target. "
            "Fix the program or the input, or raise max_bad_rows"
        )


def query_id_of(identity: QueryIdentity) -> str:
    """Spark's id of the query."""
    return identity.id.partition("/")[0]
