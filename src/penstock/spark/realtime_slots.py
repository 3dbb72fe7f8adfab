"""Real-time mode needs a place for every one of its tasks at the same time, as none of them ends before the batch does.

With too few, a query would read some partitions and never come to the others, and say nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PipelineError
from penstock.spark.realtime_planning import RealTimePlan
from penstock.spark.session_defaults import local_cores

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_COMING_UP_S: Final = 30.0
"""How long the executors of a cluster may take until they are there."""
_POLL_S: Final = 0.1

_lock: Final = threading.Lock()
_held: Final[dict[StreamingQuery, int]] = {}
"""The slots that queries in real-time mode hold as long as they run."""


def shuffle_partitions_for(spark: SparkSession, plan: RealTimePlan, what: str) -> int | None:
    """How many shuffle partitions the query is to have so that all its tasks find a place; None: as the session says.

    Fewer than the session says where only these fit. PipelineError when not even one for each shuffle does: it says
    what is needed and what to do. Executors that are coming up are waited for.
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
        f"{what}: real-time mode runs all of its tasks at the same time. It needs {_needed(plan, least)}, and of the "
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
        return f"Run it on local[{slots}]: there, slots are threads, and may be more than there are cores"
    return "Give the cluster more cores, stop other queries, or read topics with fewer partitions"


def _is_local(spark: SparkSession) -> bool:
    return local_cores(spark.sparkContext.master or "") is not None


def _slots(spark: SparkSession) -> int:
    """How many tasks the executors that are there run at once."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _free_slots(spark: SparkSession) -> int:
    """Less those that queries in real-time mode hold. The tasks of others come and go."""
    with _lock:
        for query in [query for query in _held if not query.isActive]:
            del _held[query]
        return max(0, _slots(spark) - sum(_held.values()))
