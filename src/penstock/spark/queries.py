"""One query of a pipeline: as it was planned, and as it runs, started again when it fails."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError, PipelineError
from penstock.spark import triggers
from penstock.spark.checkpoint_folder import CheckpointFolder
from penstock.spark.door import BatchLeft, Door, SideOutput
from penstock.spark.folders import StateFolder
from penstock.spark.progress import ProgressBook
from penstock.spark.restart import Restart, may_pass
from penstock.spark.targets import OutputMode, QueryIdentity, Target
from penstock.spark.triggers import Trigger

SPARK_CHECKPOINT: Final = "spark"
STAGING: Final = "staging"
_COMMIT_S: Final = 2.0
"""How long Spark may take, when a pipeline is stopped, to note that the batch which has just left is done."""

_LOOK_S: Final = 0.1

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """What a user asked for with one `write`."""

    name: str
    frame: DataFrame
    targets: Sequence[Target]
    sides: Sequence[SideOutput]
    mode: OutputMode
    trigger: Trigger
    restart: Restart
    start: Callable[[str, str], StreamingQuery] | None = None
    """How it is started where its batches leave through no door (real-time mode): of the name and the checkpoint."""


class RunningQuery:
    """A planned query in the background. Whoever starts it stops it, or waits for its end."""

    def __init__(
        self,
        pipeline: str,
        planned: PlannedQuery,
        checkpoint: CheckpointFolder,
        book: ProgressBook,
        once: bool,
        after: Sequence[RunningQuery] = (),
    ) -> None:
        """It begins when those it is `after` have ended."""
        self._pipeline = pipeline
        self._planned = planned
        self._folder: StateFolder = checkpoint.query(planned.name)
        self._book = book
        if planned.sides:
            book.has_gate(planned.name)
        self._once = once
        self._after = after
        self._stopping = threading.Event()
        self._query: StreamingQuery | None = None
        self._door: Door | None = None
        self._last_left = -1
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name=f"penstock-{self.spark_name}", daemon=True)
        self.error: BaseException | None = None
        """Why it failed for good."""

    @property
    def name(self) -> str:
        return self._planned.name

    @property
    def spark_name(self) -> str:
        """What the query is called where Spark shows it."""
        return f"{self._pipeline}.{self._planned.name}"

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it has ended, by itself, by an error or because it was stopped, within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, drain_s: float) -> None:
        """Let the batch that is on its way leave, for at most this time, then end."""
        until = time.monotonic() + drain_s
        self._stopping.set()
        with self._lock:
            query, door = self._query, self._door
        if query is not None:
            if door is not None and door.wait_until_free(until - time.monotonic()):
                self._await_commit(query)
            query.stop()
        self._thread.join(max(1.0, until - time.monotonic() + 10.0))

    def _await_commit(self, query: StreamingQuery) -> None:
        """Without this the last batch would only be repeated at the next start, and found to be delivered."""
        until = time.monotonic() + _COMMIT_S
        while query.isActive and time.monotonic() < until:
            progress = query.lastProgress
            if self._last_left < 0 or (progress is not None and progress.batchId >= self._last_left):
                return
            time.sleep(0.01)

    def _supervise(self) -> None:
        try:
            for other in self._after:
                while not other.wait(_LOOK_S):
                    if self._stopping.is_set():
                        break
                if other.error is not None:
                    self._stopping.set()
            self._run_until_done()
        except BaseException as error:
            self.error = error
            self._book.tell_state(self.name, "failed", error)
            raise

    def _run_until_done(self) -> None:
        attempt, waits = 0, self._planned.restart.backoff.waits_s()
        while not self._stopping.is_set():
            left_before = self._last_left
            error = self._run_once()
            if self._stopping.is_set() or error is None:
                break
            if self._last_left > left_before:
                attempt, waits = 0, self._planned.restart.backoff.waits_s()
            attempt += 1
            if not may_pass(error) or attempt > self._planned.restart.attempts:
                self._fail(error, attempt)
                return
            self._pause(error, attempt, waits)
        self._book.tell_state(self.name, "stopped" if self._stopping.is_set() else "finished")

    def _run_once(self) -> BaseException | None:
        """Start the query, and give what ended it; None: it was done, or stopped."""
        door: Door | None = None
        try:
            with self._lock:
                if self._stopping.is_set():
                    return None
                door, self._query = self._begin()
                self._door = door
            self._book.tell_state(self.name, "running")
            self._query.awaitTermination()
        except Exception as error:
            cause = door.error if door is not None else None
            return cause or error
        finally:
            with self._lock:
                query, self._query, self._door = self._query, None, None
            if query is not None:
                self._see_off(query)
            if door is not None:
                door.close()
        return None

    def _see_off(self, query: StreamingQuery) -> None:
        """It must not live on where nobody supervises it, and its last progress may not have been told yet."""
        if query.isActive:
            query.stop()
        for progress in query.recentProgress:
            self._book.tell_progress(self.name, json.loads(progress.json))

    def _begin(self) -> tuple[Door | None, StreamingQuery]:
        planned = self._planned
        location = self._folder.below(SPARK_CHECKPOINT).path
        if planned.start is not None and not self._once:
            return None, planned.start(self.spark_name, location)
        door = Door(self._identity, planned.targets, planned.sides, self._left)
        writer = (
            planned.frame.writeStream.queryName(self.spark_name)
            .outputMode(planned.mode)
            .option("checkpointLocation", location)
            .foreachBatch(door)
        )
        return door, triggers.apply(writer, planned.trigger, self._once).start()

    def _identity(self, query_id: str, label: str) -> QueryIdentity:
        place = hashlib.sha256(label.encode()).hexdigest()[:12]
        return QueryIdentity(
            pipeline=self._pipeline,
            query=self.name,
            id=f"{query_id}/{label}",
            staging=self._folder.below(STAGING, place).path,
            mode=self._planned.mode,
        )

    def _left(self, left: BatchLeft) -> None:
        self._last_left = left.batch_id
        self._book.tell_left(self.name, left)

    def _fail(self, error: BaseException, attempt: int) -> None:
        tried = f" after {attempt} attempts" if attempt > 1 else ""
        self._book.tell_state(self.name, "failed", error)
        if isinstance(error, PenstockError):
            self.error = error
            return
        self.error = PipelineError(f"query {self.name!r} of pipeline {self._pipeline!r} failed{tried}: {_told(error)}")
        self.error.__cause__ = error

    def _pause(self, error: BaseException, attempt: int, waits: Iterator[float]) -> None:
        wait_s = next(waits)
        _log.warning(
            "query %s failed (%s); attempt %d of %d in %.1f s",
            self.spark_name,
            _told(error),
            attempt,
            self._planned.restart.attempts,
            wait_s,
        )
        self._book.tell_state(self.name, "waiting", error, restarted=True)
        self._stopping.wait(wait_s)


def _told(error: BaseException) -> str:
    """The part of an error that tells people something: Spark puts its own words, and stacks, around it."""
    text = str(error)
    with contextlib.suppress(ValueError):
        text = text[: text.index("JVM stacktrace")]
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))
    ]
    ours = [line for line in lines if line.startswith("penstock.errors.")]
    return ours[-1].removeprefix("penstock.errors.") if ours else (lines[0] if lines else type(error).__name__)
