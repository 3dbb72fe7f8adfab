"""One run of a pipeline: start its queries, wait for them, and stop them on an error or a signal."""

from __future__ import annotations

import atexit
import json
import logging
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.model.observing import OBSERVED
from penstock.model.stop_signals import on_stop_signals
from penstock.spark.run.checkpoint_folder import CheckpointFolder, Fingerprint
from penstock.spark.run.datasets import QueryInputs
from penstock.spark.run.group_offsets import GroupOffsets, offsets_read
from penstock.spark.run.host_checks import check_hosts
from penstock.spark.run.plans import planned_sources, topics_read
from penstock.spark.run.progress import ProgressTracker
from penstock.spark.run.queries import PlannedQuery, RunningQuery
from penstock.spark.run.settings import current_run
from penstock.spark.run.status_line import StatusLine
from penstock.spark.sessions.defaults import local_cores
from penstock.spark.sink.folders.folder import Folder
from penstock.spark.source.read_options import absolute_url
from penstock.spark.state.stateful_functions import require_an_end
from penstock.spark.versions.names import FIRST
from penstock.spark.versions.retirement import Retirement

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline


class ProgressListener(StreamingQueryListener):
    """Tracks the progress of the session's queries whose names begin with the name of the pipeline."""

    def __init__(self, pipeline: str, tracker: ProgressTracker) -> None:
        self._prefix = f"{pipeline}."
        self._tracker = tracker

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name = event.progress.name or ""
        if name.startswith(self._prefix):
            self._tracker.add_progress(name.removeprefix(self._prefix), json.loads(event.progress.json))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """`RunningQuery` handles the end of the query."""


DRAIN_S: Final = 30.0
_POLL_S: Final = 0.2
EXIT_DRAIN_S: Final = 5.0
"""How long running batches may take when the program exits without stopping its pipelines."""
_log = logging.getLogger("penstock.spark")


class PipelineRun:
    """One run of a pipeline in this process."""

    def __init__(self, pipeline: Pipeline, once: bool) -> None:
        self._pipeline = pipeline
        self._once = once
        self._queries: list[RunningQuery] = []
        self._checkpoint = CheckpointFolder(pipeline.name, pipeline.folder)
        self._listener = ProgressListener(pipeline.label, pipeline.tracker)
        self._offsets: GroupOffsets | None = None
        self._retirement = Retirement(pipeline.connection, pipeline.name, pipeline.version or FIRST)
        self._ended = False
        self._ending = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._ended

    def start(self) -> None:
        pipeline = self._pipeline
        spark = pipeline.spark
        pipeline.connection  # noqa: B018 raises now if the stream cannot be reached
        self._checkpoint.open()
        try:
            self._retirement.check()  # now that others see that this run has the folder
            for planned in pipeline.queries:
                if self._once:
                    require_an_end(planned.frame, f"query {planned.name!r} of pipeline {pipeline.name!r}")
                self._checkpoint.check_query(planned.name, Fingerprint.of(planned.frame, planned.mode))
            self._check_hosts()
            for spool in pipeline.spools:
                spool.drain_what_is_there() if self._once else spool.start()
            if (on_start := current_run().on_start) is not None:
                on_start(pipeline)
            pipeline.tracker.write_to(self._checkpoint.folder)
            self._commit_offsets()
            spark.streams.addListener(self._listener)
        except BaseException:
            self._ended = True  # no listener was added, and no query was started
            self._stop_spools()
            self._checkpoint.close()
            raise
        writers: dict[str, RunningQuery] = {}
        at_a_time = self._concurrent_queries()
        for number, planned in enumerate(pipeline.queries):
            after: list[RunningQuery] = []
            if self._once:
                # Stage by stage: a query starts when the queries that write its topics have finished.
                after = [writers[topic] for topic in topics_read(planned.frame) if topic in writers]
                after += self._queries[number - at_a_time :][:1] if number >= at_a_time else []
            query = RunningQuery(
                pipeline.label,
                planned,
                self._checkpoint,
                pipeline.tracker,
                self._once,
                after,
                None if OBSERVED.lineage is None else self._inputs_of(planned),
                self._retirement,
            )
            writers.update(dict.fromkeys((target.label for target in planned.targets), query))
            self._queries.append(query)
        # A program that exits without `stop`, as by Ctrl-C in `wait`, must not be shown as running forever.
        atexit.register(self._stop_at_exit)
        for query in self._queries:
            query.start()
        self._retirement.watch(self._on_retirement, self._checkpoint.records.refresh)

    def _inputs_of(self, planned: PlannedQuery) -> QueryInputs:
        pipeline = self._pipeline
        queues = {spool.log_url: spool.shown for spool in pipeline.spools}
        return QueryInputs(planned_sources(planned.frame), absolute_url(pipeline.url), pipeline.addresses(), queues)

    def _commit_offsets(self) -> None:
        """From now on, commit the progress of the queries as the offsets of a group each, if the stream has groups."""
        pipeline = self._pipeline
        if not pipeline.commits_offsets:
            return
        own = pipeline.addresses()
        planned = {each.name: planned_sources(each.frame) for each in pipeline.queries}
        offsets = self._offsets = GroupOffsets(pipeline.connection.group_admin, pipeline.label)

        def note(query: str, reported: Sequence[Mapping[str, Any]]) -> None:
            offsets.note(query, offsets_read(planned[query], reported, own))

        pipeline.tracker.on_progress = note
        offsets.start()

    def _concurrent_queries(self) -> int:
        """How many queries of a run with `once` may run at the same time.

        Every task with Python code needs a process, which must report to Spark within ten seconds of its start. A few
        cores cannot start the processes of many queries in that time. A cluster is assumed to be large enough.
        """
        cores = local_cores(self._pipeline.spark.sparkContext.master or "")
        return max(2, cores) if cores is not None else len(self._pipeline.queries)

    def _check_hosts(self) -> None:
        """On a cluster: raise ConfigError before the first batch if hosts do not share the folders of the pipeline."""
        spark = self._pipeline.spark
        if local_cores(spark.sparkContext.master or "") is None:
            targets = [target for planned in self._pipeline.queries for target in planned.targets]
            targets += [side.target for planned in self._pipeline.queries for side in planned.sides]
            folders = [target.path for target in targets if isinstance(target, Folder)]
            check_hosts(spark, [self._checkpoint.folder.path, *folders])

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all queries have ended; False after the timeout. If one failed, stop all and raise its error."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            ended = all(query.wait(0.0) for query in self._queries)
            failed = next((query.error for query in self._queries if query.error is not None), None)
            if failed is not None:
                self.stop(0.0)
                raise failed
            if ended:
                self._end()
                return True
            left_s = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
            if left_s <= 0:
                return False
            running = next((query for query in self._queries if not query.wait(0.0)), self._queries[0])
            running.wait(left_s)

    def stop(self, drain_s: float) -> None:
        """Stop all queries at the same time."""
        stopping = [threading.Thread(target=query.stop, args=(drain_s,)) for query in self._queries]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self._end()

    def _on_retirement(self) -> None:
        _log.warning("%s: this version is being retired; the running batches are finished", self._pipeline.label)
        self.stop(DRAIN_S)

    def _stop_at_exit(self) -> None:
        """Stop one query after the other: at exit, Python starts no threads."""
        for query in self._queries:
            query.stop(EXIT_DRAIN_S)
        self._end()

    def _end(self) -> None:
        self._retirement.stop()  # not under the lock: its thread may be about to end this run
        with self._ending:
            if not self._ended:
                self._ended = True
                atexit.unregister(self._stop_at_exit)
                self._pipeline.spark.streams.removeListener(self._listener)
                if self._offsets is not None:
                    self._offsets.close()
                self._stop_spools()
                self._checkpoint.close(ended=all(query.wait(0.0) for query in self._queries))

    def _stop_spools(self) -> None:
        for spool in self._pipeline.spools:
            spool.stop()


def run_together(
    pipelines: Sequence[Pipeline], *, once: bool = False, drain_s: float = DRAIN_S, quiet: bool = False
) -> None:
    """Run pipelines until all have ended, one fails, or SIGTERM or SIGINT arrives. See `Pipeline.run`."""
    stopped = threading.Event()
    status = StatusLine(pipelines, quiet=quiet or current_run().quiet)

    def stop(number: signal.Signals) -> None:
        _log.info("%s: finishing the running batches", number.name)
        stopped.set()

    with on_stop_signals(stop):
        try:
            status.starting()
            for pipeline in pipelines:
                pipeline.start(once=once)
            status.started()
            waiting = list(pipelines)
            while waiting and not stopped.is_set():
                waiting = [pipeline for pipeline in waiting if not pipeline.wait(_POLL_S)]
                status.update()
        finally:
            for pipeline in pipelines:
                pipeline.stop(drain_s)
            status.ended()
