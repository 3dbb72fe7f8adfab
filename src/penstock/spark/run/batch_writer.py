"""`BatchWriter`: delivers each batch of a query to its targets, then its late rows to the side outputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from penstock.spark.errors.batch_rows import BAD_ROWS, BadRowCollector
from penstock.spark.errors.reports import BatchReports
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.sink.target import Delivered, Delivery, QueryIdentity, Target


@dataclass(frozen=True, slots=True)
class SideOutput:
    """A gate that holds late rows back, and the target for them."""

    gate: OnTimeGate
    target: Target


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    batch_id: int
    delivered: Sequence[tuple[str, Delivered]]
    late: int
    refused: int = 0
    """Rows that went to the dead letters, as a target cannot take them."""
    bad: BatchReports = field(default_factory=lambda: BatchReports((), {}))
    """What guards and expectations found."""


class BatchWriter:
    """The foreachBatch function of one run of a query. It opens the targets at the first batch.

    `identity` maps the id of the query and the label of a target to the identity under which the query writes to that
    target. `keeps_state` says whether the query has stateful operators. `dropped_up_to_ms` maps a batch to the
    watermark by which Spark drops rows in it. `on_delivered` is called after each batch. `bad_rows` has the rows that
    guards and expectations took out of a batch. `before_batch` is called first, and may raise to end the query.
    """

    def __init__(
        self,
        identity: Callable[[str, str], QueryIdentity],
        targets: Sequence[Target],
        sides: Sequence[SideOutput],
        on_delivered: Callable[[BatchOutcome], None],
        *,
        keeps_state: bool,
        dropped_up_to_ms: Callable[[int], int],
        bad_rows: BadRowCollector | None = None,
        before_batch: Callable[[], None] | None = None,
    ) -> None:
        self._identity = identity
        self._targets = targets
        self._sides = sides
        self._on_delivered = on_delivered
        self._keeps_state = keeps_state
        self._dropped_up_to_ms = dropped_up_to_ms
        self._bad_rows = bad_rows
        self._before_batch = before_batch
        self._query_id = ""
        self._opened: list[tuple[Target, Delivery]] = []
        self._opened_sides: list[tuple[SideOutput, Delivery]] = []
        self._closed = False
        self._lock = threading.Lock()
        """Held while a batch is written."""
        self.error: BaseException | None = None
        """The exception that ended a batch: Spark passes on only its text."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with self._lock:
            try:
                self._write(frame, batch_id)
            except BaseException as error:
                self.error = error
                raise

    def wait_until_free(self, timeout_s: float) -> bool:
        """Wait until no batch is being written; False after the timeout."""
        if not self._lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        self._lock.release()
        return True

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        if self._closed:
            raise RuntimeError("the query was stopped")
        if self._before_batch is not None:
            self._before_batch()
        if not self._query_id:
            self._open(frame)
        several = len(self._opened) > 1
        if several:
            frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            delivered = [(target.label, delivery.deliver(frame, batch_id)) for target, delivery in self._opened]
            if self._keeps_state and all(each.repeated for _, each in delivered):
                # The previous run was killed between delivery and Spark's commit, and no target needs the rows again.
                # But Spark commits a batch only if its stateful operators ran: STATE_STORE_COMMIT_VALIDATION_FAILED.
                frame.write.format("noop").mode("overwrite").save()
        finally:
            if several:
                frame.unpersist()
        late = [self._write_late(side, delivery, frame, batch_id) for side, delivery in self._opened_sides]
        refused = sum(each.refused for _, each in delivered) + sum(each.refused for _, each in late)
        bad = BatchReports((), {})
        if self._bad_rows is not None:  # targets that deliver a repeated batch again leave it to the end
            bad = self._bad_rows.found(self._identity(self._query_id, BAD_ROWS), batch_id)
        self._on_delivered(BatchOutcome(batch_id, delivered, sum(rows for rows, _ in late), refused, bad))

    def _open(self, frame: DataFrame) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id, "Spark sets this property in foreachBatch"
        for target in self._targets:
            self._opened.append((target, target.open(self._identity(query_id, target.label))))
        for side in self._sides:
            identity = replace(self._identity(query_id, f"late {side.target.label}"), mode="append")
            self._opened_sides.append((side, side.target.open(identity)))
        self._query_id = query_id

    def _write_late(
        self, side: SideOutput, delivery: Delivery, frame: DataFrame, batch_id: int
    ) -> tuple[int, Delivered]:
        """The number of late rows, and the outcome of delivering them."""
        late = side.gate.staged(frame.sparkSession, self._query_id, batch_id, self._dropped_up_to_ms(batch_id))
        delivered = delivery.deliver(late.frame, batch_id) if late is not None else Delivered(0)
        side.gate.finish(self._query_id, batch_id)
        return late.rows if late is not None else 0, delivered

    def close(self) -> None:
        with self._lock, contextlib.ExitStack() as closing:
            self._closed = True
            for _, delivery in self._opened:
                closing.callback(delivery.close)
            for _, delivery in self._opened_sides:
                closing.callback(delivery.close)
            self._opened, self._opened_sides = [], []
