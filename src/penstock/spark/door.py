"""The door through which every batch of a query leaves: each target once, side outputs with it, in this order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

from penstock.spark.late import OnTimeGate
from penstock.spark.targets import Delivered, Delivery, QueryIdentity, Target


@dataclass(frozen=True, slots=True)
class SideOutput:
    """Rows that a gate held back, and where they go."""

    gate: OnTimeGate
    target: Target


@dataclass(frozen=True, slots=True)
class BatchLeft:
    """What became of one batch."""

    batch_id: int
    delivered: Sequence[tuple[str, Delivered]]
    late: int


class Door:
    """The function that Spark calls for each batch of one run of a query. Targets are opened at the first.

    `identity` makes, of the id of the query and the label of a target, who writes there: what one target remembers of a
    query is not mixed up with what another does.
    """

    def __init__(
        self,
        identity: Callable[[str, str], QueryIdentity],
        targets: Sequence[Target],
        sides: Sequence[SideOutput],
        told: Callable[[BatchLeft], None],
    ) -> None:
        self._identity = identity
        self._targets = targets
        self._sides = sides
        self._told = told
        self._query_id = ""
        self._opened: list[tuple[Target, Delivery]] = []
        self._opened_sides: list[tuple[SideOutput, Delivery]] = []
        self._closed = False
        self._turn = threading.Lock()
        self.error: BaseException | None = None
        """What went wrong, as it was raised here: Spark passes on no more than its text."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with self._turn:
            try:
                self._let_through(frame, batch_id)
            except BaseException as error:
                self.error = error
                raise

    def wait_until_free(self, timeout_s: float) -> bool:
        """Whether no batch is in the door, now or within this time."""
        if not self._turn.acquire(timeout=max(0.0, timeout_s)):
            return False
        self._turn.release()
        return True

    def _let_through(self, frame: DataFrame, batch_id: int) -> None:
        if self._closed:
            raise RuntimeError("the query was stopped")
        if not self._query_id:
            self._open(frame)
        several = len(self._opened) > 1
        if several:
            frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            delivered = [(target.label, delivery.deliver(frame, batch_id)) for target, delivery in self._opened]
        finally:
            if several:
                frame.unpersist()
        late = sum(self._let_side_out(side, delivery, frame, batch_id) for side, delivery in self._opened_sides)
        self._told(BatchLeft(batch_id, delivered, late))

    def _open(self, frame: DataFrame) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id, "Spark names the query in each of its batches"
        for target in self._targets:
            self._opened.append((target, target.open(self._identity(query_id, target.label))))
        for side in self._sides:
            identity = replace(self._identity(query_id, f"late {side.target.label}"), mode="append")
            self._opened_sides.append((side, side.target.open(identity)))
        self._query_id = query_id

    def _let_side_out(self, side: SideOutput, delivery: Delivery, frame: DataFrame, batch_id: int) -> int:
        late = side.gate.staged(frame.sparkSession, self._query_id, batch_id)
        if late is not None:
            delivery.deliver(late.frame, batch_id)
        side.gate.finish(self._query_id, batch_id)
        return late.rows if late is not None else 0

    def close(self) -> None:
        with self._turn, contextlib.ExitStack() as closing:
            self._closed = True
            for _, delivery in self._opened:
                closing.callback(delivery.close)
            for _, delivery in self._opened_sides:
                closing.callback(delivery.close)
            self._opened, self._opened_sides = [], []
