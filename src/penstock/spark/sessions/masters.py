"""Masters that do not answer, or that have no executor to give: told instead of waited for."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from penstock.errors import ConfigError, PipelineError

EXECUTOR_WAIT: Final = "spark.penstock.executorWait"
"""The setting of how long a program waits for its first executor."""
WAIT: Final = "120s"
"""On a standalone cluster, whose workers are there or not."""
MANAGED_WAIT: Final = "600s"
"""On YARN and Kubernetes, which may start machines and fetch images first."""
TOLD_AFTER_S: Final = 10.0

_STANDALONE: Final = "spark://"
_HOST: Final = re.compile(r"([^\s:,/]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_ANSWER_S: Final = 5.0
_LOOK_S: Final = 0.2

_log = logging.getLogger("penstock.spark")


def standalone_hosts(master: str) -> list[tuple[str, int]]:
    """The hosts and ports of `spark://HOST:PORT,...`; empty for anything else."""
    if not master.startswith(_STANDALONE):
        return []
    found = [_HOST.fullmatch(host) for host in master.removeprefix(_STANDALONE).split(",")]
    return [(str(each[1]), int(each[2])) for each in found if each] if all(found) else []


def check_answers(master: str) -> None:
    """Raise PipelineError if none of the hosts of a standalone master takes connections.

    Spark would try for a minute, and then report a stopped context.
    """
    reason: OSError | None = None
    for host, port in standalone_hosts(master):
        try:
            socket.create_connection((host.strip("[]"), port), _ANSWER_S).close()
            return
        except OSError as error:
            reason = error
    if reason is not None:
        raise PipelineError(f"no Spark master answers at {master} ({reason}): check that it runs and this is its port")


class ExecutorWatch:
    """While a job runs: cancels it if its program has had no executor for too long. Spark would wait for ever."""

    def __init__(self, context: SparkContext, job_group: str) -> None:
        """Raises ConfigError if the setting of how long to wait is not a time."""
        self._context = context
        self._job_group = job_group
        self._wait_s = _wait_s(context)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-executor-watch", daemon=True)
        self.gave_up = False
        """Whether the job was cancelled."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def complaint(self) -> str:
        """What to tell when it gave up."""
        context = self._context
        master, conf = str(context.master), context.getConf()
        memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", None)
        return (
            f"{master} has given this program no executor for {self._wait_s:g} s. It asks for {memory} of memory "
            f"(spark.executor.memory) and {'one core' if cores is None else f'{cores} cores'} for each. "
            f"{_advice(master, str(context.applicationId))}. An executor also ends at once if it cannot connect to the "
            f"driver at {conf.get('spark.driver.host', 'this host')} (spark.driver.host). To wait longer, set "
            f"{EXECUTOR_WAIT}"
        )

    def _watch(self) -> None:
        without_s = time.monotonic()
        is_told = False
        while not self._is_over.wait(_LOOK_S):
            try:
                if executors_of(self._context):
                    without_s = time.monotonic()
                    continue
                waited_s = time.monotonic() - without_s
                if waited_s > self._wait_s:
                    self.gave_up = True
                    self._context.cancelJobGroup(self._job_group)
                    return
            except (Py4JError, PySparkException, OSError) as error:  # the session has ended, as the job itself reports
                _log.debug("executors are no longer counted: %s", error)
                return
            if waited_s > TOLD_AFTER_S and not is_told:
                is_told = True
                _log.warning("%s has no executor yet: waiting for up to %g s", self._context.master, self._wait_s)


def executors_of(context: SparkContext) -> int:
    """How many executors the program has now."""
    jvm: Any = context._jsc.sc()
    return len(jvm.statusTracker().getExecutorInfos()) - 1  # the driver is one of them


def _wait_s(context: SparkContext) -> float:
    conf = context._jsc.sc().conf()
    default = WAIT if str(context.master).startswith(_STANDALONE) else MANAGED_WAIT
    try:
        return float(conf.getTimeAsSeconds(EXECUTOR_WAIT, default))
    except (Py4JError, PySparkException) as error:
        raise ConfigError(
            f"{EXECUTOR_WAIT}={conf.get(EXECUTOR_WAIT, '')} must be a time, such as 120s or 10m"
        ) from error


def _advice(master: str, application: str) -> str:
    if master.startswith(_STANDALONE):
        return (
            "Look at the page of the master (port 8080 by default): is a worker alive that has this memory and a core "
            "to spare, or does another program hold all cores (its spark.cores.max)? Lower spark.executor.memory, or "
            "add workers"
        )
    if master == "yarn":
        return (
            f"Look at `yarn application -status {application}` and at its queue: is there room for such a container, "
            "and does yarn.scheduler.maximum-allocation-mb allow it?"
        )
    if master.startswith("k8s://"):
        return (
            f"Look at `kubectl describe pods -l spark-app-selector={application}`: are the pods pending, or does their "
            "image not start?"
        )
    return "Look at what the cluster says about this program"
