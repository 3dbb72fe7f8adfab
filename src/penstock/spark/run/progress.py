"""The progress and history of the queries of a pipeline: in memory, as metrics, and as files beside the checkpoint."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.spark.late.gate import dropped_late
from penstock.spark.run.batch_writer import BatchOutcome
from penstock.spark.run.failures import Failure
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.source.positions import UNCOUNTED

logger = logging.getLogger(__name__)

HISTORY_FILE: Final = "happenings.jsonl"
MOST_LINES: Final = 300
LONGEST_ERROR: Final = 1_000
_BY_STATE: Final = {
    "running": "started",
    "waiting": "restarted",
    "failed": "failed",
    "finished": "finished",
    "stopped": "stopped",
}


def history_event(before: str, state: str) -> str | None:
    """The history event of a change of state; None for a change that is not recorded.

    A restart is recorded, with its error, when the query begins to wait, not when it runs again.
    """
    return None if state == "running" and before == "waiting" else _BY_STATE.get(state)


class PipelineHistory:
    """The history file of one pipeline, with its newest events. Thread-safe."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def add(self, at: float, query: str, what: str, error: str | None, batch_id: int) -> None:
        """Append an event. A failure to write is only logged: it must not end a query."""
        short = None if error is None else error[:LONGEST_ERROR]
        line = json.dumps({"at": at, "query": query, "what": what, "error": short, "batch_id": batch_id})
        with self._lock:
            try:
                lines = (self._folder.read(HISTORY_FILE) or "").splitlines()
                kept = [*lines, line][-MOST_LINES:]
                self._folder.write(HISTORY_FILE, "\n".join(kept) + "\n")
            except (OSError, ValueError) as problem:
                logger.warning("cannot write the history of query %s: %s", query, problem)


PROGRESS_FILE: Final = "progress.json"
_WRITE_EVERY_S: Final = 1.0
_LABELS: Final = ("pipeline", "query")

REGISTRY: Final = CollectorRegistry()
"""The metrics of all pipelines of this process. `penstock.observe.metrics` exports them."""

ROWS_READ: Final = Counter("penstock_pipeline_rows_read", "Rows read from the sources.", _LABELS, registry=REGISTRY)
ROWS_WRITTEN: Final = Counter(
    "penstock_pipeline_rows_written",
    "Rows delivered to a target. A batch that an earlier run had already delivered is not counted again.",
    (*_LABELS, "target"),
    registry=REGISTRY,
)
ROWS_LATE: Final = Counter(
    "penstock_pipeline_rows_late",
    "Rows whose windows were already closed. Rising: allow more grace, or find out what delays the producers.",
    _LABELS,
    registry=REGISTRY,
)
ROWS_REFUSED: Final = Counter(
    "penstock_pipeline_rows_refused",
    "Rows that a target cannot take, which are with the dead letters. Rising: look at the reasons there.",
    _LABELS,
    registry=REGISTRY,
)
ROWS_BAD: Final = Counter(
    "penstock_pipeline_rows_bad",
    "Rows that failed in a function of the program or did not meet an expectation, by what they failed; `outcome` is "
    "dead_letter or drop. Rising: look at the reasons in the dead letters.",
    (*_LABELS, "rule", "outcome"),
    registry=REGISTRY,
)
BATCHES: Final = Counter("penstock_pipeline_batches", "Batches finished.", _LABELS, registry=REGISTRY)
RESTARTS: Final = Counter(
    "penstock_pipeline_restarts", "Times a query was started again after an error.", _LABELS, registry=REGISTRY
)
LAG: Final = Gauge(
    "penstock_pipeline_lag_records",
    "Records in the sources that the query has not read. Rising: it needs more cores, or larger batches.",
    _LABELS,
    registry=REGISTRY,
)
BATCH_SECONDS: Final = Gauge(
    "penstock_pipeline_batch_seconds", "How long the last batch took.", _LABELS, registry=REGISTRY
)
STATE_ROWS: Final = Gauge(
    "penstock_pipeline_state_rows", "Rows that stateful operators keep.", _LABELS, registry=REGISTRY
)
WATERMARK: Final = Gauge(
    "penstock_pipeline_watermark_seconds",
    "The watermark, in seconds since 1970. Constant while rows arrive: one source has stopped.",
    _LABELS,
    registry=REGISTRY,
)


@dataclass(slots=True)
class QueryProgress:
    """The progress of one query as of its last batch."""

    query: str
    state: str = "starting"
    """starting, running, waiting (for its next attempt), finished, stopped or failed"""
    batch_id: int = -1
    rows_read: int = 0
    """All counts are those of this run."""
    rows_written: int = 0
    rows_late: int = 0
    rows_refused: int = 0
    """Rows that a target cannot take, such as those without a key for a table: they are with the dead letters."""
    rows_bad: int = 0
    """Rows that failed in a function or did not meet an expectation: they are with the dead letters."""
    rows_dropped: int = 0
    """Rows that did not meet an expectation whose rows are dropped."""
    bad_rows: dict[str, int] = field(default_factory=dict)
    """The rows of both kinds by what they failed, such as `expectation positive`."""
    batch_rows_bad: int = 0
    """`rows_bad` of the last batch, and so on."""
    batch_rows_dropped: int = 0
    batch_bad_rows: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    lag: int | None = None
    """Records not read yet; None while unknown. If pointers do not count records, it is 0 or unknown."""
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    state_rows: int = 0
    watermark: str | None = None
    error: str | None = None
    """The last error, even if the query was restarted since."""
    error_file: str | None = None
    """The file with the tracebacks of Python and Java."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Name and pointers by partition of each source: read up to `end`, available up to `latest`."""
    batch_at: float = 0.0
    """When the last batch finished, in seconds since 1970."""
    at: float = 0.0
    """When this was recorded, in seconds since 1970."""


class ProgressTracker:
    """Tracks the progress of the queries of one pipeline. Thread-safe."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._queries: dict[str, QueryProgress] = {}
        self._gated: set[str] = set()
        self._folder: StateFolder | None = None
        self._history: PipelineHistory | None = None
        self._lock = threading.Lock()
        self._written_at = 0.0
        self.on_progress: Callable[[str, Sequence[Mapping[str, Any]]], None] | None = None
        """Called with a query and the sources of its progress after each batch."""

    def write_to(self, folder: StateFolder) -> None:
        """Also write the progress to this folder, where the console reads it."""
        self._folder = folder
        self._history = PipelineHistory(folder)

    def now(self) -> Mapping[str, QueryProgress]:
        with self._lock:
            return {name: QueryProgress(**asdict(each)) for name, each in self._queries.items()}

    def set_gated(self, query: str) -> None:
        """Count the late rows of this query by its gate. What Spark drops behind the gate are single windows of rows
        that are on time for others."""
        self._gated.add(query)

    def set_state(
        self,
        query: str,
        state: str,
        error: Failure | None = None,
        error_file: str | None = None,
        restarted: bool = False,
    ) -> None:
        with self._lock:
            known = self._known(query)
            what, known.state = history_event(known.state, state), state
            if error is not None:
                known.error, known.error_file = error.text, error_file
            if restarted:
                known.restarts += 1
                RESTARTS.labels(self._pipeline, query).inc()
            known.at = at = time.time()
            text, batch_id = known.error if error is not None else None, known.batch_id
        if what is not None and self._history is not None:
            self._history.add(at, query, what, text, batch_id)
        self._write(now=True)

    def add_batch(self, query: str, outcome: BatchOutcome) -> None:
        """Count a batch that was delivered."""
        with self._lock:
            known = self._known(query)
            for label, delivered in outcome.delivered:
                if not delivered.repeated:
                    known.rows_written += delivered.rows
                    ROWS_WRITTEN.labels(self._pipeline, query, label).inc(delivered.rows)
            self._add_late(known, outcome.late)
            known.rows_refused += outcome.refused
            ROWS_REFUSED.labels(self._pipeline, query).inc(outcome.refused)
            self._add_bad(known, outcome)

    def add_progress(self, query: str, progress: Mapping[str, Any]) -> None:
        """Take over Spark's progress report of a batch."""
        with self._lock:
            known = self._known(query)
            labels = (self._pipeline, query)
            batch_id, rows = int(progress["batchId"]), int(progress.get("numInputRows") or 0)
            if batch_id <= known.batch_id:  # reported by Spark's listener, and again when the query has ended
                return
            known.batch_id = batch_id
            known.rows_read += rows
            ROWS_READ.labels(*labels).inc(rows)
            BATCHES.labels(*labels).inc()
            self._add_rows_of_spark_sink(known, progress.get("sink") or {})
            if query not in self._gated:
                self._add_late(known, dropped_late(progress))
            known.batch_s = float((progress.get("durationMs") or {}).get("triggerExecution", 0)) / 1000
            known.rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
            known.sources = [_source(each) for each in progress.get("sources") or ()]
            known.lag = _lag(known.sources)
            known.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in progress.get("stateOperators") or ())
            known.watermark = (progress.get("eventTime") or {}).get("watermark")
            known.at = known.batch_at = time.time()
            BATCH_SECONDS.labels(*labels).set(known.batch_s)
            STATE_ROWS.labels(*labels).set(known.state_rows)
            if known.lag is not None:
                LAG.labels(*labels).set(known.lag)
            if known.watermark is not None:
                WATERMARK.labels(*labels).set(_seconds(known.watermark))
            read = known.sources
        if self.on_progress is not None:
            self.on_progress(query, read)
        self._write(now=False)

    def _known(self, query: str) -> QueryProgress:
        return self._queries.setdefault(query, QueryProgress(query))

    def _add_rows_of_spark_sink(self, known: QueryProgress, sink: Mapping[str, Any]) -> None:
        """Count the rows that Spark's own sink wrote, in real-time mode. For foreachBatch, Spark reports -1."""
        rows = int(sink.get("numOutputRows") or 0)
        if rows > 0:
            known.rows_written += rows
            ROWS_WRITTEN.labels(self._pipeline, known.query, "real-time").inc(rows)

    def _add_bad(self, known: QueryProgress, outcome: BatchOutcome) -> None:
        counts = outcome.bad.counts
        known.batch_bad_rows = {rule: count.bad + count.dropped for rule, count in counts.items()}
        known.batch_rows_bad = sum(count.bad for count in counts.values())
        known.batch_rows_dropped = sum(count.dropped for count in counts.values())
        known.rows_bad += known.batch_rows_bad
        known.rows_dropped += known.batch_rows_dropped
        for rule, count in counts.items():
            labels = (self._pipeline, known.query, rule)
            known.bad_rows[rule] = known.bad_rows.get(rule, 0) + known.batch_bad_rows[rule]
            ROWS_BAD.labels(*labels, "dead_letter").inc(count.bad)
            ROWS_BAD.labels(*labels, "drop").inc(count.dropped)

    def _add_late(self, known: QueryProgress, late: int) -> None:
        known.rows_late += late
        ROWS_LATE.labels(self._pipeline, known.query).inc(late)

    def _write(self, now: bool) -> None:
        folder = self._folder
        if folder is None or not (now or time.monotonic() - self._written_at >= _WRITE_EVERY_S):
            return
        self._written_at = time.monotonic()
        queries = [asdict(each) for each in self.now().values()]
        # By pid and host, readers find out whether "running" is still true.
        content = {"pipeline": self._pipeline, "pid": os.getpid(), "host": socket.gethostname(), "queries": queries}
        folder.write(PROGRESS_FILE, json.dumps(content) + "\n")


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    end, latest = _parsed(source.get("endOffset")), _parsed(source.get("latestOffset"))
    told = {
        "source": str(source.get("description", "")).partition("\n")[0],
        "end": _pointers(end),
        "latest": _pointers(latest),
    }
    return {**told, "uncounted": True} if isinstance(latest, Mapping) and UNCOUNTED in latest else told


def _parsed(offset: Any) -> Any:
    if isinstance(offset, str):
        try:
            return json.loads(offset)
        except ValueError:
            return None
    return offset


def _pointers(offset: Any) -> dict[str, int] | None:
    """The pointers by partition, from either engine's form: {"0": 17} or {"topic": {"0": 17}}. None if absent."""
    if not isinstance(offset, Mapping):
        return None
    found: dict[str, int] = {}
    for name, value in offset.items():
        if name.startswith("@"):
            continue
        if isinstance(value, Mapping):
            found |= {f"{name}/{partition}": int(pointer) for partition, pointer in value.items()}
        elif isinstance(value, int):
            found[str(name)] = value
    return found


def _lag(sources: list[dict[str, Any]]) -> int | None:
    """The number of records that are not read; None if a source does not tell, or cannot count them."""
    lags = [_lag_of(each) for each in sources if each["end"] is not None and each["latest"] is not None]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known and len(known) == len(lags) else None


def _lag_of(source: dict[str, Any]) -> int | None:
    behind = [max(0, pointer - source["end"].get(partition, 0)) for partition, pointer in source["latest"].items()]
    return None if "uncounted" in source and any(behind) else sum(behind)


def _seconds(watermark: str) -> float:
    return datetime.fromisoformat(watermark).timestamp()
