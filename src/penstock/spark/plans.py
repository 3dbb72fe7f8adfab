"""What a streaming DataFrame is made of, asked of Spark's own plan: its sources and its stateful operators."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.errors import ConfigError
from penstock.spark.gateway import jvm_of
from penstock.spark.targets import OutputMode

MODES: Final = ("append", "update", "complete")
_TOPIC_OPTIONS: Final = ("topic", "subscribe")


def require_stream(frame: DataFrame, what: str) -> None:
    if not isinstance(frame, DataFrame):
        raise ConfigError(f"{what}: {type(frame).__name__} is no DataFrame")
    if not frame.isStreaming:
        raise ConfigError(f"{what}: this DataFrame is not a stream: make it from what `read` gives, not from a table")


def analysed(frame: DataFrame) -> Any:
    """The logical plan of a frame, an object of the JVM."""
    return frame._jdf.queryExecution().analyzed()


def nodes(plan: Any) -> Iterator[Any]:
    """Every operator of a plan, children first: what they are never moves when something is put on top of them."""
    children = plan.children()
    for index in range(children.size()):
        yield from nodes(children.apply(index))
    yield plan


def sources(frame: DataFrame) -> list[str]:
    """The streams a frame reads, in the order in which a checkpoint counts them."""
    return [_source(node) for node in nodes(analysed(frame)) if node.isStreaming() and node.children().isEmpty()]


def _source(leaf: Any) -> str:
    try:
        name, options = leaf.sourceName(), leaf.extraOptions()
    except Exception:  # py4j has no class for a method that is not there; a source of the old kind has neither
        return str(leaf.nodeName())
    topics = [options.get(option) for option in _TOPIC_OPTIONS if options.containsKey(option)]
    return f"topic {topics[0]}" if topics else str(name)


def stateful_operators(frame: DataFrame) -> list[str]:
    """Each operator that keeps state, with a digest of what it keeps, in the order of the plan."""
    checker = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    found = []
    for node in nodes(analysed(frame)):
        if node.isStreaming() and checker.isStatefulOperation(node):
            kept = json.dumps(_without_metadata(json.loads(node.schema().json())), sort_keys=True)
            found.append(f"{node.nodeName()}:{hashlib.sha256(kept.encode()).hexdigest()[:16]}")
    return found


def _without_metadata(schema: Any) -> Any:
    """A schema less what has no bearing on state, such as the marks of watermarks."""
    if isinstance(schema, dict):
        return {
            name: _without_metadata(value) for name, value in schema.items() if name not in ("metadata", "nullable")
        }
    if isinstance(schema, list):
        return [_without_metadata(each) for each in schema]
    return schema


def mode_of(frame: DataFrame, wanted: OutputMode | None, what: str) -> OutputMode:
    """The output mode: as wanted; else append where results can be final, update where they never are."""
    if wanted is not None:
        if wanted not in MODES:
            raise ConfigError(f"{what}: mode={wanted!r} is not allowed: use {', '.join(MODES)}")
        problem = _problem_with(frame, wanted)
        if problem is not None:
            raise ConfigError(f"{what}: Spark cannot give these results in {wanted} mode: {problem}")
        return wanted
    problem = _problem_with(frame, "append")
    if problem is None:
        return "append"
    if _problem_with(frame, "update") is None:
        return "update"
    raise ConfigError(f"{what}: Spark cannot run this as a stream: {problem}")


def _problem_with(frame: DataFrame, mode: OutputMode) -> str | None:
    jvm = jvm_of(frame.sparkSession)
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    spoken = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    try:
        checker.checkForStreaming(analysed(frame), spoken)
    except AnalysisException as error:
        return (error.getMessage() or str(error)).partition("\n")[0]
    return None
