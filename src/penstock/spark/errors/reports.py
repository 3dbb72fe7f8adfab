"""What tasks report to the driver about single rows: those that failed, and how many rows each rule saw.

Reports travel in a Spark accumulator. The driver has those of a finished job when the job has ended, and none of task
attempts that failed. Spark may compute the rows of a batch more than once, so reports carry the stage and partition
that they are from: `BatchReports` counts each partition once.

Reports are only made in queries of a `Pipeline` that has dead letters. Elsewhere nothing collects them, so a guarded
function raises its error as without the guard.
"""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from penstock.consuming.loop.failures import error_text
from penstock.errors import BadRowsError

MOST_BAD_ROWS: Final = 100_000
"""How many bad rows a task may report: they are held in the memory of the driver."""
COLLECTING: Final = "penstock.badRows.most"
"""The local property of queries whose bad rows are collected: how many there may be in one task."""
GUARDING: Final = "penstock.badRows.guards"
"""The local property of queries whose functions are guarded without being marked with `guarded`."""
SEARCHING: Final = "penstock.badRows.searching"
"""The local property of queries that leave out rows which Spark's own expressions refuse: see `searched_plans`."""
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_LONGEST_TRACE: Final = 8_000
_LONGEST_TEXT: Final = 2_000


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that failed."""

    rule: str
    """What it failed: the name of a function or of an expectation."""
    origin: str | None
    """The record that the row was made from, as `origin_text`; None where it is unknown."""
    row: str | None
    """The row, or the arguments of the function, as JSON."""
    error: str
    error_kind: str
    traceback: str


@dataclass(slots=True)
class RuleCount:
    """What one rule did in one attempt at a partition, or in a batch."""

    seen: int = 0
    dropped: int = 0
    """Rows that were dropped without a letter."""
    bad: int = 0
    """Rows for the dead letters."""


@dataclass(slots=True)
class TaskReport:
    """The report of one rule in one task attempt. A task may have several of a rule, each in a process of its own."""

    rule: str
    count: RuleCount = field(default_factory=RuleCount)
    bad: list[BadRow] = field(default_factory=list)


Batch = tuple[str, int]
"""The id of a query and the number of a batch."""
Attempt = tuple[int, int, int]
"""Stage, partition and id of a task attempt."""
Reports = dict[tuple[Batch, Attempt, str], TaskReport]
"""The reports by batch, attempt and a random id."""


class ReportStore:
    """The reports that have arrived in the driver, until `take`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: Reports = {}

    def add(self, reports: Reports) -> None:
        with self._lock:
            self._reports.update(reports)

    def take(self, batch: Batch) -> list[tuple[Attempt, TaskReport]]:
        """The reports of a batch. Those of earlier batches of the query are dropped: their batch failed."""
        query_id, number = batch
        with self._lock:
            mine = [key for key in self._reports if key[0][0] == query_id and key[0][1] <= number]
            taken = [(key, self._reports.pop(key)) for key in mine]
        return [(attempt, report) for (of, attempt, _), report in taken if of == batch]


class _Param(AccumulatorParam[Any]):
    """In the driver, the value is a `ReportStore`; in tasks, it is the `Reports` that are sent."""

    def zero(self, value: Any) -> Any:
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        if isinstance(value1, ReportStore):
            value1.add(value2)
        else:
            value1.update(value2)
        return value1


_lock: Final = threading.Lock()
_channels: Final[dict[int, tuple[SparkContext, Accumulator[Any], ReportStore]]] = {}


def _channel(context: SparkContext) -> tuple[SparkContext, Accumulator[Any], ReportStore]:
    with _lock:
        known = _channels.get(id(context))
        if known is None or known[0] is not context:
            for key in [key for key, (other, _, _) in _channels.items() if other._jsc is None]:
                del _channels[key]  # stopped
            store = ReportStore()
            known = _channels[id(context)] = (context, context.accumulator(store, _Param()), store)
        return known


def accumulator(context: SparkContext) -> Accumulator[Any]:
    """What functions for tasks carry along, to report by."""
    return _channel(context)[1]


def store(context: SparkContext) -> ReportStore:
    """What has been reported to this driver."""
    return _channel(context)[2]


def is_guarded() -> bool:
    """In a task: whether its functions are guarded without being marked."""
    task = TaskContext.get()
    return task is not None and task.getLocalProperty(GUARDING) is not None


class Reporter:
    """In a task: reports the rows that one rule saw."""

    def __init__(self, rule: str, report: TaskReport | None, most: int) -> None:
        self._rule = rule
        self._report = report
        self._most = most
        self.count = RuleCount() if report is None else report.count

    @classmethod
    def of_task(cls, rule: str, reports: Accumulator[Any] | None) -> Reporter:
        """The reporter in the running task. Outside of a task of a pipeline, it collects nothing."""
        task = TaskContext.get()
        most = task.getLocalProperty(COLLECTING) if task is not None else None
        query_id = task.getLocalProperty(_QUERY) if task is not None else None
        if task is None or most is None or query_id is None or reports is None:
            return cls(rule, None, 0)
        batch = query_id, int(task.getLocalProperty(_BATCH) or 0)
        attempt = task.stageId(), task.partitionId(), task.taskAttemptId()
        report = reports._value[batch, attempt, uuid.uuid4().hex] = TaskReport(rule)
        return cls(rule, report, int(most))

    @property
    def is_collecting(self) -> bool:
        return self._report is not None

    def failed(self, error: Exception, origin: str | None, row: str | None) -> None:
        """Report that a function failed for a row. Raises the error where nothing is collected."""
        if self._report is None:
            raise error
        trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
        self._add(BadRow(self._rule, origin, row, _short(error_text(error)), type(error).__name__, trace))

    def not_met(self, error: str, kind: str, origin: str | None, row: str | None) -> None:
        """Report a row that does not meet an expectation."""
        if self._report is None:
            raise BadRowsError(f"{error}. Nothing collects dead letters here: only queries of a Pipeline do")
        self._add(BadRow(self._rule, origin, row, _short(error), kind, ""))

    def _add(self, row: BadRow) -> None:
        assert self._report is not None
        self.count.bad += 1
        if len(self._report.bad) >= self._most:
            raise BadRowsError(
                f"more than {self._most:,} rows of one task are bad, the last because of {row.error}. Fix the "
                "program or the input, or raise max_bad_rows"
            )
        self._report.bad.append(row)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


@dataclass(frozen=True, slots=True)
class BatchReports:
    """What the rules found in one batch."""

    bad: tuple[BadRow, ...]
    """Each record once for each rule; rows of unknown origin as often as they failed."""
    counts: Mapping[str, RuleCount]

    @property
    def seen(self) -> int:
        """The number of rows that the busiest rule saw: the rows of the batch, where Spark does not tell them."""
        return max((count.seen for count in self.counts.values()), default=0)


def combined(reports: list[tuple[Attempt, TaskReport]]) -> BatchReports:
    """The reports of a batch, in which Spark may have computed partitions several times.

    The latest attempt at a partition counts. Of several stages that a rule was evaluated in, the one that saw most
    counts: the others evaluated the same rows, or fewer.
    """
    last: dict[tuple[int, int], int] = {}
    for (stage, partition, attempt), _ in reports:
        last[stage, partition] = max(attempt, last.get((stage, partition), -1))
    by_stage: dict[tuple[str, int], RuleCount] = {}
    rows: dict[tuple[str, int], list[BadRow]] = {}
    for (stage, partition, attempt), report in sorted(reports, key=lambda each: each[0]):
        if attempt == last[stage, partition]:
            total = by_stage.setdefault((report.rule, stage), RuleCount())
            total.seen += report.count.seen
            total.dropped += report.count.dropped
            total.bad += report.count.bad
            rows.setdefault((report.rule, stage), []).extend(report.bad)
    counts: dict[str, RuleCount] = {}
    bad: list[BadRow] = []
    for rule in sorted({rule for rule, _ in by_stage}):
        stages = [stage for of, stage in by_stage if of == rule]
        fullest = max(stages, key=lambda stage: (by_stage[rule, stage].seen, stage))
        counts[rule] = by_stage[rule, fullest]
        known: set[str] = set()
        # A function that is not deterministic may fail in one stage only: its row is missing in the others.
        for stage in (fullest, *(stage for stage in stages if stage != fullest)):
            for row in rows.get((rule, stage), ()):
                if row.origin is None and stage != fullest:
                    continue
                if row.origin is None or row.origin not in known:
                    bad.append(row)
                if row.origin is not None:
                    known.add(row.origin)
    return BatchReports(tuple(bad), counts)
