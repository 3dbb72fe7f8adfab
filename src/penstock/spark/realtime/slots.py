"""Task slots for real-time mode, which runs all tasks of a query at the same time, until the batch ends.

With too few slots, a query would silently read only some of its partitions.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PipelineError
from penstock.spark.realtime.planning import RealTimePlan
from penstock.spark.sessions.defaults import local_cores

_COMING_UP_S: Final = 30.0
"""How long the executors of a cluster may take to start."""
_POLL_S: Final = 0.1

_lock: Final = threading.Lock()
_held: Final[dict[StreamingQuery, int]] = {}
"""The slots of running queries in real-time mode."""


def shuffle_partitions_for(spark: SparkSession, plan: RealTimePlan, what: str) -> int | None:
    """The number of shuffle partitions for which all tasks of the query have slots; None: that of the session.

    It waits for starting executors, and reduces the session's number if necessary. Raises PipelineError if there is not
    even one slot for each shuffle.
    """
    least = plan.source_tasks + len(plan.shuffles)
    until = time.monotonic() + _COMING_UP_S
    while (free := _free_slots(spark)) < plan.tasks:
        if _is_local(spark) or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    if plan.tasks <= free:
        return None
    if least <= free:
        return (free - plan.source_tasks) // len(plan.shuffles)
    raise PipelineError(
        f"{what}: real-time mode runs all tasks at the same time. It needs {_needed(plan, least)}, and of the "
        f"{_slots(spark)} that Spark has, {free} {'is' if free == 1 else 'are'} free. {_advice(spark, least, free)}"
    )


def hold(query: StreamingQuery, plan: RealTimePlan, shuffle_partitions: int | None) -> None:
    """Count the slots of a query that was started, with this many shuffle partitions, until it ends."""
    tasks = plan.tasks if shuffle_partitions is None else plan.source_tasks + shuffle_partitions * len(plan.shuffles)
    with _lock:
        _held[query] = tasks


def _needed(plan: RealTimePlan, least: int) -> str:
    sources = f"one for each of the {plan.source_tasks} partitions that it reads"
    if not plan.shuffles:
        return f"{least} slots ({sources})"
    return f"{least} slots or more ({sources}, and one or more behind each of its {len(plan.shuffles)} shuffles)"


def _advice(spark: SparkSession, least: int, free: int) -> str:
    if _is_local(spark):
        slots = _slots(spark) + least - free
        return f"Run it on local[{slots}]: there, slots are threads, and may outnumber the cores"
    return "Add cores to the cluster, stop other queries, or read topics with fewer partitions"


def _is_local(spark: SparkSession) -> bool:
    return local_cores(spark.sparkContext.master or "") is not None


def _slots(spark: SparkSession) -> int:
    """The number of tasks that the current executors run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _free_slots(spark: SparkSession) -> int:
    """The slots that no query in real-time mode holds. Tasks of other queries end soon."""
    with _lock:
        for query in [query for query in _held if not query.isActive]:
            del _held[query]
        return max(0, _slots(spark) - sum(_held.values()))
