"""The sources, stateful operators and output modes of a streaming DataFrame, from Spark's own plan."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.spark.durations import interval
from penstock.spark.jvm import jvm_of
from penstock.spark.sink.target import OutputMode

MODES: Final = ("append", "update", "complete")
_TOPICS: Final = ("topic", "topics", "subscribe")
_PATTERNS: Final = ("topicPattern", "subscribePattern")
_ADDRESSES: Final = ("url", "kafka.bootstrap.servers")


def require_stream(frame: DataFrame, what: str) -> None:
    if not isinstance(frame, DataFrame):
        raise ConfigError(f"{what}: {type(frame).__name__} is not a DataFrame")
    if not frame.isStreaming:
        raise ConfigError(f"{what}: this DataFrame is not streaming: derive it from the result of `read`")


def analysed(frame: DataFrame) -> Any:
    """The analysed logical plan of a frame, a JVM object."""
    return frame._jdf.queryExecution().analyzed()


def nodes(plan: Any) -> Iterator[Any]:
    """Every operator of a plan, children first, so that their order does not depend on the operators above."""
    children = plan.children()
    for index in range(children.size()):
        yield from nodes(children.apply(index))
    yield plan


def streaming_sources(frame: DataFrame) -> list[Any]:
    """The leaves of the plan that are streams, in the order of the checkpoint."""
    return [node for node in nodes(analysed(frame)) if node.isStreaming() and node.children().isEmpty()]


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A stream that a frame reads."""

    address: str | None
    """The URL of its stream, or the brokers of Spark's Kafka connector; None for sources of others."""
    topics: Sequence[str]
    """The topics that it reads by name."""


def planned_sources(frame: DataFrame) -> list[PlannedSource]:
    """The streams that a frame reads, in the order of the checkpoint, and so of the query's progress."""
    return [PlannedSource(_address(leaf), _topics(leaf)[1]) for leaf in streaming_sources(frame)]


def _address(leaf: Any) -> str | None:
    try:
        options = leaf.extraOptions()
    except Exception:  # py4j has no error class for a missing method; a source of API version 1 has none
        return None
    return next((str(options.get(each)) for each in _ADDRESSES if options.containsKey(each)), None)


def rows_read(spark: SparkSession, query_id: str) -> int | None:
    """The rows that the running batch of a query has read so far, as Spark counts them; None if it does not tell."""
    try:
        query: Any = spark.streams.get(query_id)
        execution = query._jsq.streamingQuery().lastExecution()
        counts = [
            leaf.metrics().apply("numOutputRows").value()
            for leaf in nodes(execution.executedPlan())
            if leaf.children().isEmpty() and leaf.metrics().contains("numOutputRows")
        ]
    except (Py4JError, PySparkException, AttributeError):  # the query has just ended, or runs otherwise
        return None
    return sum(counts) if counts else None


def sources(frame: DataFrame) -> list[str]:
    """The streams that a frame reads, in the order of the checkpoint."""
    return [_source(leaf) for leaf in streaming_sources(frame)]


def topics_read(frame: DataFrame) -> list[str]:
    """The topics that a frame reads by name, as `topic NAME`."""
    return [f"topic {topic}" for leaf in streaming_sources(frame) for topic in _topics(leaf)[1]]


def _source(leaf: Any) -> str:
    label, topics = _topics(leaf)
    return f"topic {topics[0]}" if len(topics) == 1 else f"topics {', '.join(topics)}" if topics else label


def _topics(leaf: Any) -> tuple[str, list[str]]:
    """What a source is called, and the topics that it reads by name."""
    try:
        name, options = leaf.sourceName(), leaf.extraOptions()
    except Exception:  # py4j has no error class for a missing method; a source of API version 1 has neither
        return str(leaf.nodeName()), []
    given = {each: str(options.get(each)) for each in (*_TOPICS, *_PATTERNS) if options.containsKey(each)}
    if "topic" in given:
        return str(name), [given["topic"]]
    if "topics" in given:
        return str(name), json.loads(given["topics"])
    if "subscribe" in given:
        return str(name), given["subscribe"].split(",")
    pattern = next((given[each] for each in _PATTERNS if each in given), None)
    return (str(name) if pattern is None else f"topics that match {pattern!r}"), []


def operation_checker(frame: DataFrame) -> Any:
    """Spark's UnsupportedOperationChecker, a JVM object."""
    return jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker


def stateful_operators(frame: DataFrame) -> list[str]:
    """Each stateful operator with a digest of its columns, in the order of the plan."""
    checker = operation_checker(frame)
    found = []
    for node in nodes(analysed(frame)):
        if node.isStreaming() and checker.isStatefulOperation(node):
            kept = json.dumps(_without_metadata(json.loads(node.schema().json())), sort_keys=True)
            found.append(f"{node.nodeName()}:{hashlib.sha256(kept.encode()).hexdigest()[:16]}")
    return found


Operator = Mapping[str, Sequence[str]]
"""A description of a stateful operator, in parts such as `key` and `aggregate`; `operator` is its name."""

_MAX_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_MAX_FIELDS_LOCK: Final = threading.Lock()
_ID: Final = re.compile(r"#\d+L?(?:-T\d+ms)?")
_LAMBDA: Final = re.compile(r"\blambda (\w+)#\d+L?")
_SEED: Final = re.compile(r"\b(randn?|uuid|shuffle|randstr|uniform)\(([^()]*?)(?:Some\()?-?\d{5,}\)?\)")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?")
_WINDOW: Final = re.compile(
    r"named_struct\(start, (?:knownnullable\()?precisetimestampconversion\(\(\(precisetimestampconversion\("
    r"(?P<time>.+?), Timestamp(?:NTZ)?Type, LongType\) - CASE WHEN .+? - (?P<start>-?\d+)\) % (?P<slide>\d+)\)"
    r".+ \+ (?P<size>\d+)\), LongType, Timestamp(?:NTZ)?Type\)\)*"
)
_SESSION: Final = re.compile(
    r"named_struct\(start, precisetimestampconversion\(precisetimestampconversion\((?P<time>.+?), "
    r"Timestamp(?:NTZ)?Type, LongType\), LongType, Timestamp(?:NTZ)?Type\), end, .+? \+ (?:cast\()?"
    r"(?P<gap>[^()]+?)(?: as interval\))? as timestamp(?:_ntz)?\), Timestamp(?:NTZ)?Type, LongType\), LongType, "
    r"Timestamp(?:NTZ)?Type\)\)*"
)
_MOST_PROJECTIONS: Final = 8
"""How many projections of an Expand operator are compared."""
_LONGEST: Final = 2_000
_DEDUPLICATION: Final = ("Deduplicate", "DeduplicateWithinWatermark")


def describe_stateful_operators(frame: DataFrame) -> list[Operator]:
    """Describe each stateful operator, in the order of the plan. The same program always has the same descriptions.

    Columns are expanded to the columns of the source or the Python functions that they are computed from: renaming a
    column changes nothing, a new meaning under the old name does. Ids, random seeds and literal timestamps are left
    out, as they may differ from start to start. Of a Python function, only the name counts.
    """
    with _in_full(frame):
        return _PlanDescription(frame).operators()


def keeps_state(frame: DataFrame) -> bool:
    """Whether a query of this frame keeps state in its checkpoint."""
    return bool(describe_stateful_operators(frame))


@contextlib.contextmanager
def _in_full(frame: DataFrame) -> Iterator[None]:
    """Have Spark print long argument lists in full."""
    conf = frame.sparkSession.conf
    with _MAX_FIELDS_LOCK:  # the setting belongs to the session, and other threads start queries, too
        before = conf.get(_MAX_FIELDS)
        conf.set(_MAX_FIELDS, str(2**31 - 1))
        try:
            yield
        finally:
            conf.set(_MAX_FIELDS, str(before))


class _PlanDescription:
    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._checker = operation_checker(frame)
        self._made_of: dict[int, str] = {}
        """For the id of a column, the expression that computes it."""

    def operators(self) -> list[Operator]:
        found: list[Operator] = []
        watermarks: list[Operator] = []
        for node in nodes(analysed(self._frame)):
            name = str(node.nodeName())
            if node.isStreaming():
                if name == "EventTimeWatermark":
                    column, delay = self._text(node.eventTime()), str(node.delay().toString())
                    watermarks.append({"operator": ["watermark"], "column": [column], "delay": [delay]})
                elif (operator := self._operator(node, name)) is not None:
                    found.append(operator)
            if name == "Project":
                self._learn(_all(node.projectList()))
            elif name == "Aggregate":
                self._learn(_all(node.aggregateExpressions()))
            elif name == "Expand":
                self._learn_expanded(_all(node.output()), _all(node.projections())[:_MOST_PROJECTIONS])
        return [*found, *watermarks] if found else []

    def _operator(self, node: Any, name: str) -> Operator | None:
        if name == "Aggregate":
            made = [each for expression in _all(node.aggregateExpressions()) for each in _aggregates(expression)]
            return {
                "operator": [name],
                "grouping key": self._texts(_all(node.groupingExpressions())),
                "aggregate": list(dict.fromkeys(self._texts(made))),
            }
        if name in _DEDUPLICATION:
            return {"operator": [name], "key": sorted(self._texts(_all(node.keys())))}
        if name == "Distinct":
            return {"operator": [name], "key": self._texts(_all(node.output()))}
        if name == "Join":
            if not all(child.isStreaming() for child in _all(node.children())):
                return None
            condition = node.condition()
            left = {int(column.exprId().id()) for column in _all(node.children().apply(0).output())}
            text = [self._text(condition.get(), left)] if condition.isDefined() else []
            return {"operator": [name], "join type": [str(node.joinType().toString())], "condition": text}
        if name == "GlobalLimit":
            return {"operator": ["limit"], "rows": [self._text(node.limitExpr())]}
        if name == "TransformWithStateInPySpark":
            keys = _all(node.children().apply(0).output())[: node.groupingAttributesLen()]
            return {
                "operator": [name],
                "key": self._texts(keys),
                "mode": [str(node.outputMode().toString())],
                "time": [str(node.timeMode().toString())],
                **_STATES.get(_output_id(node), {}),
            }
        if name == "FlatMapGroupsInPandasWithState":
            return {
                "operator": [name],
                "function": [self._text(node.functionExpr()).partition("(")[0]],
                "key": self._texts(_all(node.groupingAttributes())),
                "state": [str(node.stateType().simpleString())],
                "mode": [str(node.outputMode().toString())],
                "timeout": [str(node.timeout().toString())],
            }
        if not self._checker.isStatefulOperation(node):
            return None
        return {"operator": [name], "plan": [_ID.sub("", str(node.simpleString(2**31 - 1)))]}

    def _learn(self, expressions: Iterable[Any]) -> None:
        for expression in expressions:
            if expression.getClass().getSimpleName() == "Alias":
                self._made_of[expression.exprId().id()] = self._text(expression.child())

    def _learn_expanded(self, columns: Sequence[Any], projections: Sequence[Any]) -> None:
        """Expand emits one row per projection, for overlapping windows and grouping sets."""
        rows = [self._texts(_all(each)) for each in projections]
        for index, column in enumerate(columns):
            self._made_of[column.exprId().id()] = " or ".join(dict.fromkeys(row[index] for row in rows))

    def _texts(self, expressions: Iterable[Any]) -> list[str]:
        return [self._text(each) for each in expressions]

    def _text(self, expression: Any, left: Set[int] | None = None) -> str:
        """An expression as text. `left` are the columns of the left side of a join."""
        text = str(expression.toString())
        for column in _all(expression.references().toSeq()):
            name, number = str(column.name()), int(column.exprId().id())
            made_of = self._made_of.get(number, name)
            if left is not None:
                made_of = f"{'left' if number in left else 'right'}.{made_of}"
            written = re.compile(re.escape(name) + rf"#{number}L?(?:-T\d+ms)?(?!\d)")
            text = written.sub(made_of.replace("\\", r"\\"), text)
        text = _windows_named(_without_ids(text))
        if len(text) > _LONGEST:
            return f"{text[:60]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
        return text


def _all(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _aggregates(expression: Any) -> Iterator[Any]:
    """The aggregate functions in an expression: only these keep state."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield expression
        return
    for child in _all(expression.children()):
        yield from _aggregates(child)


def _without_ids(text: str) -> str:
    variables: dict[str, str] = {}
    text = _LAMBDA.sub(lambda found: "lambda " + variables.setdefault(found[1], f"x{len(variables)}"), text)
    text = _SEED.sub(r"\1(\2)", text)
    return _MOMENT.sub("<moment>", _ID.sub("", text))


def _windows_named(text: str) -> str:
    """Replace Spark's window arithmetic by text such as `window(at, 10 seconds)`."""

    def named(found: re.Match[str]) -> str:
        size, slide, start = (int(found[part]) for part in ("size", "slide", "start"))
        parts = [found["time"], interval(size)]
        if slide != size or start:
            parts.append(f"every {interval(slide)}")
        if start:
            parts.append(f"from {interval(start)}")
        return f"window({', '.join(parts)})"

    return _SESSION.sub(r"session_window(\g<time>, \g<gap>)", _WINDOW.sub(named, text))


_STATES: Final[dict[tuple[str, int], Mapping[str, Sequence[str]]]] = {}


def note_state(frame: DataFrame, description: Mapping[str, Sequence[str]]) -> None:
    """Record what a transformWithState keeps, which its plan does not show. `frame` is its result."""
    _STATES[_output_id(analysed(frame))] = description


def _output_id(node: Any) -> tuple[str, int]:
    """The id of the operator's first output column. Each JVM counts its columns from 0."""
    column = node.output().apply(0).exprId()
    return str(column.jvmId().toString()), int(column.id())


def what_changed(before: Sequence[Operator], now: Sequence[Operator]) -> str | None:
    """A sentence on the first difference between the stateful operators of two programs; None if there is none."""
    names = [[each["operator"][0] for each in operators] for operators in (before, now)]
    if names[0] != names[1]:
        return f"its state belongs to {_listed(names[0])}, and the program now has {_listed(names[1])}"
    for old, new in zip(before, now, strict=True):
        for part in [*old, *(each for each in new if each not in old)]:
            if list(old.get(part, ())) != list(new.get(part, ())):
                return f"in {old['operator'][0]}, {_change(part, old.get(part, ()), new.get(part, ()))}"
    return None


def _change(part: str, old: Sequence[str], new: Sequence[str]) -> str:
    if len(old) == len(new):
        was, now = next((was, now) for was, now in zip(old, new, strict=True) if was != now)
        return f"{part} {was} became {now}"
    gone, added = [each for each in old if each not in new], [each for each in new if each not in old]
    changes = [f"{part} {_listed(gone)} is gone"] if gone else []
    changes += [f"{part} {_listed(added)} is new"] if added else []
    return " and ".join(changes) or f"{part} {_listed(old)} became {_listed(new)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no stateful operator"


def _without_metadata(schema: Any) -> Any:
    """The schema without what does not affect state, such as watermark metadata."""
    if isinstance(schema, dict):
        return {
            name: _without_metadata(value) for name, value in schema.items() if name not in ("metadata", "nullable")
        }
    if isinstance(schema, list):
        return [_without_metadata(each) for each in schema]
    return schema


def mode_of(frame: DataFrame, wanted: OutputMode | None, what: str) -> OutputMode:
    """The output mode: `wanted`, else append if the results can be final, else update."""
    if wanted is not None:
        if wanted not in MODES:
            raise ConfigError(f"{what}: mode={wanted!r} is not allowed: use {', '.join(MODES)}")
        problem = _problem_with(frame, wanted)
        if problem is not None:
            raise ConfigError(f"{what}: Spark cannot produce these results in {wanted} mode: {problem}")
        return wanted
    problem = _problem_with(frame, "append")
    if problem is None:
        return "append"
    if _problem_with(frame, "update") is None:
        return "update"
    raise ConfigError(f"{what}: Spark cannot run this as a stream: {problem}")


def _problem_with(frame: DataFrame, mode: OutputMode) -> str | None:
    modes = jvm_of(frame.sparkSession).org.apache.spark.sql.streaming.OutputMode
    spark_mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    try:
        operation_checker(frame).checkForStreaming(analysed(frame), spark_mode)
    except AnalysisException as error:
        return (error.getMessage() or str(error)).partition("\n")[0]
    return None
