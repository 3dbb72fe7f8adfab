"""One query of a pipeline: `PlannedQuery`, and `RunningQuery`, which supervises and restarts it."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.abc import LineageRun
from penstock.errors import PenstockError, PipelineError
from penstock.model.observing import OBSERVED
from penstock.spark.errors.batch_rows import BAD_ROWS, MOST_BAD_ROWS, BadRowCollector, RowLetters
from penstock.spark.errors.searched_plans import search
from penstock.spark.late.gate import FIRST_WATERMARK_MS
from penstock.spark.run import triggers
from penstock.spark.run.batch_writer import BatchOutcome, BatchWriter, SideOutput
from penstock.spark.run.checkpoint_folder import CheckpointFolder, batch_offsets
from penstock.spark.run.datasets import QueryInputs, written
from penstock.spark.run.failures import Failure, failure_of
from penstock.spark.run.plans import keeps_state, rows_read, sources
from penstock.spark.run.progress import ProgressTracker
from penstock.spark.run.restart import Restart, is_of_a_row, is_transient
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.run.triggers import Trigger
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.target import OutputMode, QueryIdentity, Target
from penstock.spark.versions.retirement import Retirement

SPARK_CHECKPOINT: Final = "spark"
STAGING: Final = "staging"
ERROR_FILE: Final = "error.txt"
"""The file in the folder of the query with its last error and the tracebacks."""
_COMMIT_S: Final = 2.0
"""How long `stop` waits for Spark to commit the batch that was just delivered."""

_POLL_S: Final = 0.1

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """The query of one `Pipeline.write`."""

    name: str
    frame: DataFrame
    targets: Sequence[Target]
    sides: Sequence[SideOutput]
    mode: OutputMode
    trigger: Trigger
    restart: Restart
    refused: RefusedRows | None = None
    """Where rows go that one of its targets refuses."""
    bad_rows: RowLetters | None = None
    """Where rows go that fail in a guarded function or an expectation."""
    guards: bool = False
    """Whether functions are guarded without being marked."""
    guarded: DataFrame | None = None
    """The frame with its functions guarded, which runs instead of `frame`."""
    max_bad_rows: int | float = MOST_BAD_ROWS
    """How many of them, or what share of its rows, a batch may have."""
    start: Callable[[str, str], StreamingQuery] | None = None
    """Starts the query with this name and checkpoint in real-time mode, which has no `BatchWriter`."""
    start_table: Callable[[str, str, bool], StreamingQuery] | None = None
    """The same for a table; True: process what is there, and end."""


class RunningQuery:
    """A planned query that runs in the background. Its starter must stop it or wait for its end."""

    def __init__(
        self,
        pipeline: str,
        planned: PlannedQuery,
        checkpoint: CheckpointFolder,
        tracker: ProgressTracker,
        once: bool,
        after: Sequence[RunningQuery] = (),
        inputs: QueryInputs | None = None,
        retirement: Retirement | None = None,
    ) -> None:
        """The query starts when all queries in `after` have ended. `inputs` are what `OBSERVED.lineage` is told."""
        self._pipeline = pipeline
        self._planned = planned
        self._topics = sources(planned.frame)
        self._folder: StateFolder = checkpoint.query(planned.name)
        self._tracker = tracker
        if planned.sides:
            tracker.set_gated(planned.name)
        self._once = once
        self._after = after
        self._inputs = inputs
        self._retirement = retirement
        self._lineage: LineageRun | None = None
        self._stopping = threading.Event()
        self._query: StreamingQuery | None = None
        self._writer: BatchWriter | None = None
        self._last_delivered = -1
        """The batch that was delivered last."""
        self._ended_by: BaseException | None = None
        """The error with which Spark last ended the query: it has the offsets of the batch."""
        self._bad_rows = BadRowCollector(
            planned.frame.sparkSession.sparkContext,
            planned.bad_rows,
            planned.max_bad_rows,
            self.spark_name,
            guards=planned.guards,
            rows_read=functools.partial(rows_read, planned.frame.sparkSession),
        )
        self._searched: DataFrame | None = None
        """The frame without the rows for which an expression fails, once one has failed."""
        self._catches_up = False
        """Whether a query of real-time mode runs in batches up to now, as one of its rows has failed."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name=f"penstock-{self.spark_name}", daemon=True)
        # Not `Thread.join`: after Ctrl-C, it takes a running thread for one that has ended.
        self._ended = threading.Event()
        self.error: BaseException | None = None
        """The error that ended the query after all restarts."""

    @property
    def name(self) -> str:
        return self._planned.name

    @property
    def spark_name(self) -> str:
        """The name of the query in Spark."""
        return f"{self._pipeline}.{self._planned.name}"

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the query has finished, failed or been stopped; False after the timeout."""
        return self._ended.wait(timeout_s)

    def stop(self, drain_s: float) -> None:
        """Let the running batch finish, for at most `drain_s`, then stop."""
        until = time.monotonic() + drain_s
        self._stopping.set()
        with self._lock:
            query, writer = self._query, self._writer
        if query is not None:
            if writer is not None and writer.wait_until_free(until - time.monotonic()):
                self._await_commit(query)
            query.stop()
        self._ended.wait(max(1.0, until - time.monotonic() + 10.0))

    def _await_commit(self, query: StreamingQuery) -> None:
        """Wait for Spark to commit the last batch. Otherwise the next start only repeats it and skips its delivery."""
        until = time.monotonic() + _COMMIT_S
        while query.isActive and time.monotonic() < until:
            progress = query.lastProgress
            if self._last_delivered < 0 or (progress is not None and progress.batchId >= self._last_delivered):
                return
            time.sleep(0.01)

    def _supervise(self) -> None:
        try:
            for other in self._after:
                while not other.wait(_POLL_S):
                    if self._stopping.is_set():
                        break
                if other.error is not None:
                    self._stopping.set()
            self._report_start()
            self._run_until_done()
        except BaseException as error:
            self.error = error
            failure = failure_of(error)
            self._tracker.set_state(self.name, "failed", failure, self._keep(failure))
            raise
        finally:
            if self._lineage is not None:
                self._report_inputs()
                self._lineage.end(self.error, stopped=self._stopping.is_set())
            self._ended.set()

    def _report_start(self) -> None:
        """Tell the lineage that this query begins. One that was stopped while it waited for others has not begun."""
        if OBSERVED.lineage is None or self._inputs is None or self._stopping.is_set():
            return
        planned = self._planned
        outputs = written([*planned.targets, *(side.target for side in planned.sides)])
        self._lineage = OBSERVED.lineage.start(
            self.spark_name, "QUERY", self._inputs.datasets(), outputs, ends=self._once
        )

    def _report_inputs(self) -> None:
        """Tell the lineage which topics matched patterns."""
        if self._lineage is not None and self._inputs is not None and self._inputs.has_patterns:
            known = self._tracker.now().get(self.name)
            self._lineage.reads(self._inputs.datasets(() if known is None else known.sources))

    def _run_until_done(self) -> None:
        attempt, waits = 0, self._planned.restart.delays_s()
        while not self._stopping.is_set():
            delivered_before = self._last_delivered
            error = self._run_once()
            if self._stopping.is_set() or (error is None and not self._catches_up):
                break
            if error is None:
                self._catches_up = False
                _log.info("query %s is in real-time mode again", self.spark_name)
                continue
            if self._can_search() and is_of_a_row(error):
                self._search(error)
                continue
            if self._last_delivered > delivered_before:
                attempt, waits = 0, self._planned.restart.delays_s()
            attempt += 1
            if not is_transient(error) or attempt > self._planned.restart.attempts:
                self._fail(error, attempt)
                return
            self._pause(error, attempt, waits)
        self._tracker.set_state(self.name, "stopped" if self._stopping.is_set() else "finished")

    def _run_once(self) -> BaseException | None:
        """Run the query to its end. The error that ended it; None if it finished or was stopped."""
        writer: BatchWriter | None = None
        try:
            self._end_if_retired()
            with self._lock:
                if self._stopping.is_set():
                    return None
                writer, self._query = self._begin()
                self._writer = writer
            self._tracker.set_state(self.name, "running")
            self._query.awaitTermination()
        except Exception as error:
            self._ended_by = error
            cause = writer.error if writer is not None else None
            return cause or error
        finally:
            with self._lock:
                query, self._query, self._writer = self._query, None, None
            if query is not None:
                self._stop_and_report(query)
            if writer is not None:
                writer.close()
        return None

    @property
    def _is_in_batches(self) -> bool:
        planned = self._planned
        return planned.start_table is None and (planned.start is None or self._once or self._catches_up)

    def _can_search(self) -> bool:
        """Whether the next run can find the rows for which an expression fails: it must run in batches for that."""
        if not self._bad_rows.collects or self._planned.start_table is not None:
            return False
        # State that batches have written cannot be used in real-time mode afterwards.
        return self._searched is None if self._is_in_batches else not keeps_state(self._planned.frame)

    def _search(self, error: BaseException) -> None:
        """Have the rows found that an expression fails for. The next run repeats the batch without them."""
        frame = self._planned.guarded or self._planned.frame
        if self._searched is None:
            found = search(frame, f"query {self.spark_name}") if self._planned.guards else None
            self._searched = found or frame
        _log.warning(
            "query %s failed because of a row: %s; it starts again%s, and rows that fail go to the dead letters",
            self.spark_name,
            self._failure(error).text,
            "" if self._is_in_batches else " in batches, until it has caught up",
        )
        self._catches_up = not self._is_in_batches

    def _stop_and_report(self, query: StreamingQuery) -> None:
        """Stop a query that is no longer supervised, and record its last progress, which may not be reported yet."""
        if query.isActive:
            query.stop()
        for progress in query.recentProgress:
            self._tracker.add_progress(self.name, json.loads(progress.json))

    def _begin(self) -> tuple[BatchWriter | None, StreamingQuery]:
        planned = self._planned
        location = self._folder.below(SPARK_CHECKPOINT).path
        if planned.start_table is not None:
            return None, planned.start_table(self.spark_name, location, self._once)
        if planned.start is not None and not self._is_in_batches:
            return None, planned.start(self.spark_name, location)
        writer = BatchWriter(
            self._identity,
            planned.targets,
            planned.sides,
            self._delivered,
            keeps_state=keeps_state(planned.frame),
            dropped_up_to_ms=self._dropped_up_to_ms,
            bad_rows=self._bad_rows,
            before_batch=self._check_retirement,
        )
        self._bad_rows.begin(searching=self._searched is not None)
        stream_writer = (
            (self._searched or planned.guarded or planned.frame)
            .writeStream.queryName(self.spark_name)
            .outputMode(planned.mode)
            .option("checkpointLocation", location)
            .foreachBatch(writer)
        )
        return writer, triggers.apply(stream_writer, planned.trigger, self._once or self._catches_up).start()

    def _end_if_retired(self) -> bool:
        """Stop if the version is being retired: its checkpoint may be deleted, unless a lock protects it."""
        if self._folder.local is not None or self._retirement is None or not self._retirement.has_begun():
            return False
        self._stopping.set()
        return True

    def _check_retirement(self) -> None:
        if self._end_if_retired():
            raise RuntimeError("the version of this query is being retired")

    def _dropped_up_to_ms(self, batch_id: int) -> int:
        """The watermark by which stateful operators drop rows in a batch: Spark's watermark of the previous batch."""
        if self._planned.mode == "complete":
            return FIRST_WATERMARK_MS  # complete mode drops no rows
        text = self._folder.below(SPARK_CHECKPOINT).read(f"offsets/{batch_id - 1}")
        if text is None:
            return FIRST_WATERMARK_MS
        return int(json.loads(text.splitlines()[1])["batchWatermarkMs"])

    def _identity(self, query_id: str, label: str) -> QueryIdentity:
        folder = hashlib.sha256(label.encode()).hexdigest()[:12]
        identity = QueryIdentity(
            pipeline=self._pipeline,
            query=self.name,
            id=f"{query_id}/{label}",
            staging=self._folder.below(STAGING, folder).path,
            mode=self._planned.mode,
            refused=self._planned.refused,
            offsets=functools.partial(batch_offsets, self._folder.below(SPARK_CHECKPOINT)),
        )
        own = replace(identity, id=f"{query_id}/{BAD_ROWS}")  # the letters of a batch do not depend on the target
        return replace(identity, on_evaluated=functools.partial(self._bad_rows.evaluated, own))

    def _delivered(self, outcome: BatchOutcome) -> None:
        self._last_delivered = outcome.batch_id
        self._tracker.add_batch(self.name, outcome)
        self._report_inputs()

    def _fail(self, error: BaseException, attempt: int) -> None:
        tried = f" after {attempt} attempts" if attempt > 1 else ""
        failure = self._failure(error)
        kept = self._keep(failure)
        self._tracker.set_state(self.name, "failed", failure, kept)
        if isinstance(error, PenstockError):
            self.error = error
            return
        self.error = PipelineError(
            f"query {self.name!r} of pipeline {self._pipeline!r} failed{tried}: {failure.text}{_whole(kept)}"
        )
        self.error.__cause__ = error

    def _pause(self, error: BaseException, attempt: int, waits: Iterator[float]) -> None:
        wait_s = next(waits)
        failure = self._failure(error)
        kept = self._keep(failure)
        _log.warning(
            "query %s failed: %s%s; attempt %d of %d in %.1f s",
            self.spark_name,
            failure.text,
            _whole(kept),
            attempt,
            self._planned.restart.attempts,
            wait_s,
        )
        self._tracker.set_state(self.name, "waiting", failure, kept, restarted=True)
        self._stopping.wait(wait_s)

    def _failure(self, error: BaseException) -> Failure:
        return failure_of(error, self._ended_by, self._topics)

    def _keep(self, failure: Failure) -> str | None:
        """Write the error with its tracebacks beside the checkpoint. The path; None, with a log line, if that fails."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        try:
            self._folder.write(ERROR_FILE, f"{at} query {self.spark_name}: {failure.text}\n\n{failure.complete}")
        except Exception as problem:  # a problem of the disk or the JVM must not hide the error itself
            _log.warning("cannot write the error of query %s to a file: %s\n%s", self.name, problem, failure.complete)
            return None
        return f"{self._folder.path}/{ERROR_FILE}"


def _whole(kept: str | None) -> str:
    """The end of a message: the file with the tracebacks."""
    return f" (with tracebacks in {kept})" if kept is not None else ""
