"""Checks whether a frame can run in real-time mode, by Spark's own planner and list of allowed operators.

Spark checks a query only after it has been started and has written to its checkpoint. Here, the frame is planned like
Spark's first batch, without reading or writing anything, so that a program learns the result in advance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame

from penstock.spark.jvm import jvm_of
from penstock.spark.run.plans import analysed, nodes, operation_checker, streaming_sources

KAFKA: Final = "kafka"
_OURS: Final = "penstock"
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_A_LONG: Final = 1 << 40
"""Any batch duration in milliseconds that py4j passes as a long: the plan is never run."""
_NOWHERE: Final = "penstock-real-time-check"

_NOT_IN_REAL_TIME: Final = {
    "maxoffsetspertrigger": "max_records_per_batch limits batches, which real-time mode does not have: omit it",
    "minpartitions": "minPartitions is not supported: each partition of the topic is one task",
}

_OPERATORS: Final = {
    "ArrowEvalPythonExec": "a function in Python (udf): use Spark's own functions",
    "BatchEvalPythonExec": "a function in Python (udf): use Spark's own functions",
    "MapInArrowExec": "Python code over rows (mapInArrow, or a topic decoded in Python): use Spark's own functions",
    "PythonMapInArrowExec": "Python code over rows (mapInArrow): use Spark's own functions",
    "MapInPandasExec": "Python code over rows (mapInPandas): use Spark's own functions",
    "FlatMapGroupsInPandasExec": "Python code over groups: use Spark's own aggregations",
    "TransformWithStateInPySparkExec": "keyed state in Python (transformWithState)",
    "FlatMapGroupsInPandasWithStateExec": "keyed state in Python (applyInPandasWithState)",
    "SortMergeJoinExec": "a join that is not a broadcast join: use broadcast(other)",
    "ShuffledHashJoinExec": "a join that is not a broadcast join: use broadcast(other)",
    "BroadcastNestedLoopJoinExec": "a join without an equality of columns",
    "CartesianProductExec": "a join without an equality of columns",
    "StreamingSymmetricHashJoinExec": "a join of two streams",
    "StreamingDeduplicateWithinWatermarkExec": "dropDuplicatesWithinWatermark: use dropDuplicates",
    "SessionWindowStateStoreSaveExec": "session windows",
    "ShuffleExchangeExec": "range partitioning (repartitionByRange)",
}
_FOLLOWS: Final = frozenset(
    {"SortExec", "SessionWindowStateStoreRestoreExec", "MergingSessionsExec", "UpdatingSessionsExec"}
)
"""Operators that Spark plans only together with one of those above, whose text is clearer."""


@dataclass(frozen=True, slots=True)
class RealTimePlan:
    """The requirements of a frame in real-time mode."""

    reasons: tuple[str, ...]
    """Why it cannot run; empty if it can."""
    source_tasks: int = 0
    """One task for each partition of each topic that it reads."""
    shuffles: tuple[int, ...] = ()
    """The number of tasks after each shuffle."""

    @property
    def tasks(self) -> int:
        """The number of tasks, which all run at the same time."""
        return self.source_tasks + sum(self.shuffles)


def planned(frame: DataFrame) -> RealTimePlan:
    """Plan a streaming frame as real-time mode would. This asks its brokers for their partitions."""
    reasons = [*_refused_sources(streaming_sources(frame)), *_refused_shape(frame)]
    if reasons:
        return RealTimePlan(tuple(reasons))
    made: list[Any] = []
    try:
        physical = _physical_plan(frame, made)
        reasons = _refused_operators(frame, physical)
        if reasons:
            return RealTimePlan(tuple(reasons))
        partitions = sum(_partitions(frame, stream) for stream in made)
        return RealTimePlan((), partitions, tuple(_tasks_behind_shuffles(physical)))
    finally:
        for stream in made:
            stream.stop()


def _refused_sources(leaves: list[Any]) -> list[str]:
    reasons = []
    seen: list[Any] = []
    for leaf in leaves:
        if _name(leaf) != "StreamingRelationV2" or leaf.sourceName() != KAFKA:
            reasons.append(_wrong_source(leaf))
            continue
        options = leaf.extraOptions()
        if any(leaf.equals(other) for other in seen):
            reasons.append(f"one frame of topic {options.get('subscribe')} is used twice: read the topic twice")
        seen.append(leaf)
        reasons += [why for option, why in _NOT_IN_REAL_TIME.items() if options.containsKey(option)]
    return reasons


def _wrong_source(leaf: Any) -> str:
    name = str(leaf.sourceName()) if _name(leaf) == "StreamingRelationV2" else _name(leaf)
    if name == _OURS:
        return (
            f"topic {leaf.extraOptions().get('topic')} is read by Penstock's own source: read it with Spark's Kafka "
            'connector (engine="native")'
        )
    return f"the source {name} is not supported: only Spark's Kafka connector is"


def _refused_shape(frame: DataFrame) -> list[str]:
    checker = operation_checker(frame)
    update = jvm_of(frame.sparkSession).org.apache.spark.sql.streaming.OutputMode.Update()
    reasons = []
    for check in (checker.checkForStreaming, checker.checkAdditionalRealTimeModeConstraints):
        try:
            check(analysed(frame), update)
        except AnalysisException as error:
            reasons.append(_message(error))
    return reasons


def _physical_plan(frame: DataFrame, made: list[Any]) -> Any:
    """The physical plan of a first batch. Its streams are added to `made`, for the caller to stop."""
    spark = frame.sparkSession
    jvm = jvm_of(spark)
    runtime = jvm.org.apache.spark.sql.execution.streaming.runtime
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    apart = spark._jsparkSession.cloneSession()
    apart.conf().set("spark.sql.adaptive.enabled", "false")  # as real-time mode does
    partitions = spark.conf.get(SHUFFLE_PARTITIONS)
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {SHUFFLE_PARTITIONS: partitions}}
    execution = runtime.IncrementalExecution
    some_id = jvm.java.util.UUID.randomUUID()
    return execution(
        apart,
        _with_streams(jvm, analysed(frame), made),
        jvm.org.apache.spark.sql.streaming.OutputMode.Update(),
        _NOWHERE,
        some_id,
        some_id,
        0,
        jvm.scala.Option.empty(),
        checkpointing.OffsetSeqMetadata.apply(json.dumps(metadata)),
        runtime.WatermarkPropagator.noop(),
        False,
        *(getattr(execution, f"$lessinit$greater$default${place}")() for place in range(12, 17)),
    ).executedPlan()


def _with_streams(jvm: Any, plan: Any, made: list[Any]) -> Any:
    if _name(plan) == "StreamingRelationV2":
        return _real_time_scan(jvm, plan, made)
    children = plan.children()
    if children.isEmpty():
        return plan
    replaced = [_with_streams(jvm, children.apply(index), made) for index in range(children.size())]
    return plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(replaced))


def _real_time_scan(jvm: Any, relation: Any, made: list[Any]) -> Any:
    sources = jvm.org.apache.spark.sql.execution.datasources.v2
    some = jvm.scala.Option.apply
    scan = relation.table().newScanBuilder(relation.extraOptions()).build()
    stream = scan.toMicroBatchStream(_NOWHERE)
    made.append(stream)
    described = sources.StreamingDataSourceV2Relation(
        relation.table(),
        relation.output(),
        relation.catalog(),
        relation.identifier(),
        relation.extraOptions(),
        _NOWHERE,
        some(_A_LONG),
        relation.sourceIdentifyingName(),
    )
    beginning = some(stream.deserializeOffset("{}"))
    return sources.StreamingDataSourceV2ScanRelation(
        described, scan, relation.output(), stream, beginning, jvm.scala.Option.empty()
    )


def _partitions(frame: DataFrame, stream: Any) -> int:
    """The current number of partitions of a stream, by its brokers."""
    everything = jvm_of(frame.sparkSession).org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
    ends = json.loads(stream.latestOffset(stream.deserializeOffset("{}"), everything).json())
    return sum(len(partitions) for partitions in ends.values())


def _refused_operators(frame: DataFrame, physical: Any) -> list[str]:
    jvm = jvm_of(frame.sparkSession)
    allowed = jvm.org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist
    try:
        allowed.checkAllowedPhysicalOperator(physical, True)
    except IllegalArgumentException as error:
        names = (error.getMessageParameters() or {}).get("message", "")
        return _in_words(names) or [_message(error)]
    return []


def _in_words(names: str) -> list[str]:
    """Spark's names of operators in terms that users know."""
    found = [part.strip(" ,").rpartition(".")[2] for part in names.replace(",", " ").split() if "." in part]
    texts = [_OPERATORS.get(name, f"the operator {name}") for name in found if name not in _FOLLOWS]
    return list(dict.fromkeys(texts)) or [f"the operator {name}" for name in found]


def _tasks_behind_shuffles(physical: Any) -> Iterator[int]:
    for node in nodes(physical):
        if _name(node) == "ShuffleExchangeExec" and node.pipelined():
            yield int(node.outputPartitioning().numPartitions())


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _message(error: AnalysisException | IllegalArgumentException) -> str:
    """Spark's message, without the error class before it and the plan after it."""
    text = (error.getMessage() or str(error)).partition("\n")[0].partition(" SQLSTATE:")[0].partition(";")[0]
    text = text.partition("] ")[2] or text
    return text.removeprefix("Streaming real-time mode has the following limitation: ").strip()
