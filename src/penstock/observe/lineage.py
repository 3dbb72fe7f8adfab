"""OpenLineage events: which handlers and queries run, and which topics, tables and folders they read and write.

`report_lineage()` turns it on for this process, before an app or a pipeline is run. The official client of OpenLineage
sends the events where its own settings say: OPENLINEAGE_URL, or `openlineage.yml`.

- START: a handler of an app, or a query of a pipeline, begins. RUNNING: topics that match its pattern were found.
- COMPLETE: it has processed all that it was to process. ABORT: it was stopped before. FAIL: an error ended it.

Sending never delays the work: events wait in a bounded queue for a thread of their own.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.abc import Dataset
from penstock.errors import ConfigError, MissingExtraError
from penstock.model.observing import OBSERVED

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

logger = logging.getLogger(__name__)

PRODUCER: Final = f"https://pypi.org/project/penstock/{__version__}"
"""The URI that says which program made an event."""
NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
"""The environment variable with the namespace of jobs, by the same name as in other integrations."""
DEFAULT_NAMESPACE: Final = "penstock"
_MOST_EVENTS: Final = 1000
_LONGEST_ERROR: Final = 2000
FLUSH_S: Final = 5.0
"""How long the exit of the program waits for events that are not sent yet."""


def report_lineage(namespace: str | None = None) -> None:
    """Report the apps and pipelines that start in this process from now on to OpenLineage.

    `namespace` is that of the jobs; by default the environment variable OPENLINEAGE_NAMESPACE, or "penstock". Raises
    MissingExtraError when openlineage-python is not installed, and ConfigError for settings that it rejects.
    """
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as error:
        raise MissingExtraError("lineage", "lineage") from error
    stop_lineage()
    try:
        client = OpenLineageClient()
    except Exception as error:  # each transport raises errors of its own
        raise ConfigError(
            f"OpenLineage rejected its settings: {error}. Check OPENLINEAGE_URL and openlineage.yml"
        ) from error
    reporter = OpenLineageReporter(client, namespace or os.environ.get(NAMESPACE) or DEFAULT_NAMESPACE)
    OBSERVED.lineage = reporter
    atexit.register(reporter.close)


def stop_lineage() -> None:
    """Stop reporting, after sending what waits, for at most five seconds. Runs in progress are not reported further."""
    reporter, OBSERVED.lineage = OBSERVED.lineage, None
    if isinstance(reporter, OpenLineageReporter):
        atexit.unregister(reporter.close)
        reporter.close()


class OpenLineageReporter:
    """A `penstock.abc.Lineage` that sends events with the client of OpenLineage."""

    def __init__(self, client: OpenLineageClient, namespace: str) -> None:
        from openlineage.client import event_v2, facet_v2
        from openlineage.client.uuid import generate_new_uuid

        self.events = event_v2
        self.facets = facet_v2
        self.namespace = namespace
        self.new_id = generate_new_uuid
        self._client = client
        self._is_failing = self._has_dropped = self._closed = False
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Also in a forked child, which has no thread, and whose parent sends what it was to send."""
        self._lock = threading.Lock()
        self._queue: queue.Queue[Any] = queue.Queue(_MOST_EVENTS)
        self._thread: threading.Thread | None = None

    def start(
        self, job: str, kind: str, inputs: Sequence[Dataset], outputs: Sequence[Dataset], *, ends: bool
    ) -> OpenLineageRun:
        return OpenLineageRun(self, job, kind, inputs, outputs, ends=ends)

    def send(self, event: Any) -> None:
        """Send an event later. It is dropped if too many wait, or after `close`."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="penstock-lineage", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            if not self._has_dropped:
                self._has_dropped = True
                logger.warning("OpenLineage events are dropped: %d are waiting for the endpoint", _MOST_EVENTS)

    def close(self) -> None:
        """Send what waits, for at most five seconds."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        until_s = time.monotonic() + FLUSH_S
        try:
            self._queue.put(None, timeout=FLUSH_S)
        except queue.Full:
            logger.debug("the queue of OpenLineage events stayed full")
        thread.join(max(0.0, until_s - time.monotonic()))
        if thread.is_alive():
            logger.warning("OpenLineage did not take all events within %g s: the last ones are lost", FLUSH_S)

    def _send_all(self) -> None:
        waiting = self._queue
        while (event := waiting.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # each transport raises errors of its own
                level = logging.DEBUG if self._is_failing else logging.WARNING
                logger.log(level, "OpenLineage events are lost: %s. Apps and pipelines go on", error)
                self._is_failing = True
            else:
                if self._is_failing:
                    logger.info("OpenLineage takes events again")
                self._is_failing = False
        self._client.close(0)


class OpenLineageRun:
    """A `penstock.abc.LineageRun`: one run of a handler or query."""

    def __init__(
        self,
        reporter: OpenLineageReporter,
        job: str,
        kind: str,
        inputs: Sequence[Dataset],
        outputs: Sequence[Dataset],
        *,
        ends: bool,
    ) -> None:
        self._reporter = reporter
        self._job = job
        self._kind = kind
        self._ends = ends
        self._inputs = tuple(sorted(set(inputs)))
        self._outputs = tuple(sorted(set(outputs)))
        self._id = str(reporter.new_id())
        self._lock = threading.Lock()
        self._ended = False
        self._report("START")

    def reads(self, inputs: Sequence[Dataset]) -> None:
        found = tuple(sorted(set(inputs)))
        with self._lock:
            if not self._ended and found != self._inputs:
                self._inputs = found
                self._report("RUNNING")

    def end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                self._report("FAIL" if error is not None else "ABORT" if stopped else "COMPLETE", error)

    def _report(self, state: str, error: BaseException | None = None) -> None:
        try:
            self._reporter.send(self._event(state, error))
        except Exception as problem:  # such as an error of the user's own class that has no text
            logger.warning("no OpenLineage event %s of %s: %s", state, self._job, problem)

    def _event(self, state: str, error: BaseException | None) -> Any:
        events, facets = self._reporter.events, self._reporter.facets
        run_facets: dict[str, Any] = {
            "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
                __version__, "Penstock", __version__, producer=PRODUCER
            )
        }
        if error is not None:
            text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
            run_facets["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
                text, "PYTHON", producer=PRODUCER
            )
        job_type = facets.job_type_job.JobTypeJobFacet(
            "BATCH" if self._ends else "STREAMING", "PENSTOCK", self._kind, producer=PRODUCER
        )
        return events.RunEvent(
            eventTime=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            eventType=events.RunState[state],
            run=events.Run(self._id, run_facets),
            job=events.Job(self._reporter.namespace, self._job, {"jobType": job_type}),
            inputs=[events.InputDataset(each.namespace, each.name) for each in self._inputs],
            outputs=[events.OutputDataset(each.namespace, each.name) for each in self._outputs],
            producer=PRODUCER,
        )
