"""How the queries of a pipeline get on: for programs, for metrics, and for whoever looks at the checkpoint folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.spark.door import BatchLeft
from penstock.spark.folders import StateFolder
from penstock.spark.happenings import Happenings, what_happened
from penstock.spark.late import dropped_late

PROGRESS_FILE: Final = "progress.json"
_WRITE_EVERY_S: Final = 1.0
_LABELS: Final = ("pipeline", "query")

REGISTRY: Final = CollectorRegistry()
"""The metrics of all pipelines of this process. `penstock.observe.metrics` shows them with all others."""

ROWS_READ: Final = Counter("penstock_pipeline_rows_read", "Rows read from the sources.", _LABELS, registry=REGISTRY)
ROWS_WRITTEN: Final = Counter(
    "penstock_pipeline_rows_written",
    "Rows delivered to a target. What an earlier run had delivered already is not counted again.",
    (*_LABELS, "target"),
    registry=REGISTRY,
)
ROWS_LATE: Final = Counter(
    "penstock_pipeline_rows_late",
    "Rows that came when their windows were closed. Rising: give more grace, or look at what delays the producers.",
    _LABELS,
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
    "The watermark, in seconds since 1970. Standing still while rows come: one source has stopped.",
    _LABELS,
    registry=REGISTRY,
)


@dataclass(slots=True)
class QueryProgress:
    """What is known of one query, as of its last batch."""

    query: str
    state: str = "starting"
    """starting, running, waiting (for its next attempt), finished, stopped or failed"""
    batch_id: int = -1
    rows_read: int = 0
    """By this run, as everything that is counted here."""
    rows_written: int = 0
    rows_late: int = 0
    restarts: int = 0
    lag: int | None = None
    """Records that are there and not read; None while nobody knows."""
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    state_rows: int = 0
    watermark: str | None = None
    error: str | None = None
    """The last error, also when it was survived."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """For each source its name and its pointers by partition: read up to `end`, of `latest`."""
    at: float = 0.0
    """When this was true, in seconds since 1970."""


class ProgressBook:
    """The progress of the queries of one pipeline. Any thread may use it."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._queries: dict[str, QueryProgress] = {}
        self._gated: set[str] = set()
        self._folder: StateFolder | None = None
        self._happenings: Happenings | None = None
        self._lock = threading.Lock()
        self._written_at = 0.0

    def keep_in(self, folder: StateFolder) -> None:
        """Leave what is known in this folder, too, where consoles find it."""
        self._folder = folder
        self._happenings = Happenings(folder)

    def now(self) -> Mapping[str, QueryProgress]:
        with self._lock:
            return {name: QueryProgress(**asdict(each)) for name, each in self._queries.items()}

    def has_gate(self, query: str) -> None:
        """Its late rows are held back by a gate, which counts them: what Spark drops behind that are pairs of a row
        that is on time and one of its windows that is not."""
        self._gated.add(query)

    def tell_state(self, query: str, state: str, error: BaseException | None = None, restarted: bool = False) -> None:
        with self._lock:
            known = self._known(query)
            what, known.state = what_happened(known.state, state), state
            if error is not None:
                known.error = f"{type(error).__name__}: {error}".partition("\n")[0]
            if restarted:
                known.restarts += 1
                RESTARTS.labels(self._pipeline, query).inc()
            known.at = at = time.time()
            told, batch_id = known.error if error is not None else None, known.batch_id
        if what is not None and self._happenings is not None:
            self._happenings.add(at, query, what, told, batch_id)
        self._write(now=True)

    def tell_left(self, query: str, left: BatchLeft) -> None:
        """A batch has left through the door."""
        with self._lock:
            known = self._known(query)
            for label, delivered in left.delivered:
                if not delivered.repeated:
                    known.rows_written += delivered.rows
                    ROWS_WRITTEN.labels(self._pipeline, query, label).inc(delivered.rows)
            self._tell_late(known, left.late)

    def tell_progress(self, query: str, progress: Mapping[str, Any]) -> None:
        """What Spark says after a batch, as its JSON."""
        with self._lock:
            known = self._known(query)
            labels = (self._pipeline, query)
            batch_id, rows = int(progress["batchId"]), int(progress.get("numInputRows") or 0)
            if batch_id <= known.batch_id:  # told by Spark's listener, and once more when the query has ended
                return
            known.batch_id = batch_id
            known.rows_read += rows
            ROWS_READ.labels(*labels).inc(rows)
            BATCHES.labels(*labels).inc()
            if query not in self._gated:
                self._tell_late(known, dropped_late(progress))
            known.batch_s = float((progress.get("durationMs") or {}).get("triggerExecution", 0)) / 1000
            known.rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
            known.sources = [_source(each) for each in progress.get("sources") or ()]
            known.lag = _lag(known.sources)
            known.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in progress.get("stateOperators") or ())
            known.watermark = (progress.get("eventTime") or {}).get("watermark")
            known.at = time.time()
            BATCH_SECONDS.labels(*labels).set(known.batch_s)
            STATE_ROWS.labels(*labels).set(known.state_rows)
            if known.lag is not None:
                LAG.labels(*labels).set(known.lag)
            if known.watermark is not None:
                WATERMARK.labels(*labels).set(_seconds(known.watermark))
        self._write(now=False)

    def _known(self, query: str) -> QueryProgress:
        return self._queries.setdefault(query, QueryProgress(query))

    def _tell_late(self, known: QueryProgress, late: int) -> None:
        known.rows_late += late
        ROWS_LATE.labels(self._pipeline, known.query).inc(late)

    def _write(self, now: bool) -> None:
        folder = self._folder
        if folder is None or not (now or time.monotonic() - self._written_at >= _WRITE_EVERY_S):
            return
        self._written_at = time.monotonic()
        queries = [asdict(each) for each in self.now().values()]
        folder.write(PROGRESS_FILE, json.dumps({"pipeline": self._pipeline, "queries": queries}) + "\n")


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": str(source.get("description", "")).partition("\n")[0],
        "end": _pointers(source.get("endOffset")),
        "latest": _pointers(source.get("latestOffset")),
    }


def _pointers(offset: Any) -> dict[str, int] | None:
    """The pointers by partition, of either engine: {"0": 17}, or {"topic": {"0": 17}}. None: there are none."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, Mapping):
        return None
    found: dict[str, int] = {}
    for name, value in offset.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{partition}": int(pointer) for partition, pointer in value.items()}
        elif isinstance(value, int):
            found[str(name)] = value
    return found


def _lag(sources: list[dict[str, Any]]) -> int | None:
    lags = [
        sum(max(0, pointer - source["end"].get(partition, 0)) for partition, pointer in source["latest"].items())
        for source in sources
        if source["end"] is not None and source["latest"] is not None
    ]
    return sum(lags) if lags else None


def _seconds(watermark: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(watermark).timestamp()
