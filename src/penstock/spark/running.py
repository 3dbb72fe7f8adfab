"""The life of pipelines: from start to end, by themselves, by an error or by a signal."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.spark.checkpoint_folder import CheckpointFolder, Fingerprint
from penstock.spark.listening import ProgressListener
from penstock.spark.plans import sources
from penstock.spark.queries import RunningQuery
from penstock.spark.run_settings import current_run
from penstock.spark.session_defaults import local_cores
from penstock.spark.state import require_an_end

if TYPE_CHECKING:
    from types import FrameType

    from penstock.spark.pipeline import Pipeline

_POLL_S: Final = 0.2
_log = logging.getLogger("penstock.spark")


class PipelineRun:
    """One run of a pipeline in this process."""

    def __init__(self, pipeline: Pipeline, once: bool) -> None:
        self._pipeline = pipeline
        self._once = once
        self._queries: list[RunningQuery] = []
        self._checkpoint = CheckpointFolder(pipeline.name, pipeline.folder)
        self._listener = ProgressListener(pipeline.label, pipeline.book)
        self._ended = False
        self._ending = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._ended

    def start(self) -> None:
        pipeline = self._pipeline
        spark = pipeline.spark
        pipeline.connection  # noqa: B018 a stream that cannot be reached is told now
        self._checkpoint.open()
        try:
            for planned in pipeline.queries:
                if self._once:
                    require_an_end(planned.frame, f"query {planned.name!r} of pipeline {pipeline.name!r}")
                self._checkpoint.check_query(planned.name, Fingerprint.of(planned.frame, planned.mode))
            self._warn_of_a_folder_that_others_may_not_see()
            if (told := current_run().on_start) is not None:
                told(pipeline)
            pipeline.book.keep_in(self._checkpoint.folder)
            spark.streams.addListener(self._listener)
        except BaseException:
            self._ended = True  # there is no listener to remove, and nothing to stop
            self._checkpoint.close()
            raise
        writers: dict[str, RunningQuery] = {}
        at_a_time = self._at_a_time()
        for number, planned in enumerate(pipeline.queries):
            after: list[RunningQuery] = []
            if self._once:
                # A run that ends when nothing is left goes stage by stage: what one writes, those after it shall find.
                after = [writers[topic] for topic in sources(planned.frame) if topic in writers]
                after += self._queries[number - at_a_time :][:1] if number >= at_a_time else []
            query = RunningQuery(pipeline.label, planned, self._checkpoint, pipeline.book, self._once, after)
            writers.update(dict.fromkeys((target.label for target in planned.targets), query))
            self._queries.append(query)
        for query in self._queries:
            query.start()

    def _at_a_time(self) -> int:
        """How many queries may run at once where each has an end. Every task with Python in it is a process, and Spark
        gives a new one ten seconds to report: a few cores that start all processes of many queries at once are too
        slow for that. A cluster is taken to be large enough."""
        cores = local_cores(self._pipeline.spark.sparkContext.master or "")
        return max(2, cores) if cores is not None else len(self._pipeline.queries)

    def _warn_of_a_folder_that_others_may_not_see(self) -> None:
        master = self._pipeline.spark.sparkContext.master or ""
        if local_cores(master) is None and self._checkpoint.folder.local is not None:
            _log.warning(
                "the checkpoints of pipeline %s are in %s: on %s, every executor must find the same folder there",
                self._pipeline.name,
                self._checkpoint.folder.path,
                master,
            )

    def wait(self, timeout_s: float | None) -> bool:
        """Whether all queries have ended within this time. A query that failed stops the others, and is raised."""
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
            self._alive().wait(left_s)

    def _alive(self) -> RunningQuery:
        return next((query for query in self._queries if not query.wait(0.0)), self._queries[0])

    def stop(self, drain_s: float) -> None:
        """All queries drain at the same time."""
        stopping = [threading.Thread(target=query.stop, args=(drain_s,)) for query in self._queries]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self._end()

    def _end(self) -> None:
        with self._ending:
            if not self._ended:
                self._ended = True
                self._pipeline.spark.streams.removeListener(self._listener)
                self._checkpoint.close()


def run_until_signal(pipelines: Sequence[Pipeline], *, once: bool, drain_s: float) -> None:
    """Start them all and wait for their end; see `penstock.spark.pipeline.run_together`."""
    stopped = threading.Event()
    with _stopping_by_signal(stopped):
        try:
            for pipeline in pipelines:
                pipeline.start(once=once)
            waiting = list(pipelines)
            while waiting and not stopped.is_set():
                waiting = [pipeline for pipeline in waiting if not pipeline.wait(_POLL_S)]
        finally:
            for pipeline in pipelines:
                pipeline.stop(drain_s)


@contextmanager
def _stopping_by_signal(stopped: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event, where signals can be had: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        _log.info("%s: finishing what is on its way", signal.Signals(number).name)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
