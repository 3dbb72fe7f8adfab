"""Processing everything again: a version of a pipeline from its beginning until it may become current.

A version is noted in the register before it writes anything, and noted as complete once it has been where its inputs
ended. What interrupts it in between, the next attempt goes on with, from its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from penstock.abc import Streams
from penstock.errors import PipelineError, UnknownTopicError
from penstock.spark.reading import read_batch
from penstock.spark.sink import TopicTarget
from penstock.spark.targets import Target
from penstock.spark.versions.catching_up import CatchingUp
from penstock.spark.versions.comparing import EXAMPLES, Comparison, compare
from penstock.spark.versions.names import FIRST, By, output_topic
from penstock.spark.versions.register import Register, Version
from penstock.streams.options import ConnectOptions

if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Begun:
    """A version of a pipeline that is being processed again."""

    pipeline: Pipeline
    version: str
    before: str
    """The version that was current when it began."""
    outputs: Mapping[str, By]
    """The topics that it writes, by their names in the program, and how they are compared."""
    elsewhere: tuple[str, ...]
    """What it writes that is no topic of its stream: nobody compares it, and no alias leads there."""
    resumed: bool
    catching_up: CatchingUp

    @property
    def finished(self) -> bool:
        """Whether every query has come to the end of its inputs, and was not stopped before."""
        progress = self.pipeline.progress()
        return all(
            query.name in progress and progress[query.name].state == "finished" for query in self.pipeline.queries
        )


def begin(pipeline: Pipeline) -> Begun:
    """Note in the register that this version is being processed. Called before its queries start."""
    version = pipeline.version or FIRST
    outputs, elsewhere = outputs_of(pipeline, version)
    if not outputs:
        raise PipelineError(
            f"pipeline {pipeline.name!r} writes no topic of {pipeline.url}: there is nothing to compare, and no alias "
            "to switch. Run it under another name instead"
        )
    register = Register(pipeline.connection)
    versions = register.versions(pipeline.name)
    before = register.current(pipeline.name)
    resumed = any(each.version == version for each in versions)
    if not resumed:
        _check_fresh(pipeline.connection, pipeline.name, version, outputs)
    checkpoints = pipeline.folder.path.rpartition("/")[0]
    register.begin(pipeline.name, version, outputs, checkpoints)
    return Begun(pipeline, version, before, outputs, elsewhere, resumed, CatchingUp(pipeline.connection, pipeline))


def caught_up(begun: Begun) -> None:
    """Note that it is complete."""
    Register(begun.pipeline.connection).caught_up(begun.pipeline.name, begun.version)


def outputs_of(pipeline: Pipeline, version: str) -> tuple[dict[str, By], tuple[str, ...]]:
    """The topics that a pipeline writes, and what else it writes."""
    outputs: dict[str, By] = {}
    elsewhere = []
    for query in pipeline.queries:
        changing = query.mode != "append"
        targets = [(target, changing) for target in query.targets]
        targets += [(side.target, False) for side in query.sides if side.target is not None]
        for target, is_changing in targets:
            name = _topic_of(target, pipeline.url)
            if name is None:
                elsewhere.append(target.label)
                continue
            is_table = is_changing or (isinstance(target, TopicTarget) and target.compact)
            outputs[name.removesuffix(output_topic("", version))] = "key" if is_table else "record"
    return outputs, tuple(elsewhere)


def _topic_of(target: Target, url: str) -> str | None:
    return target.name if isinstance(target, TopicTarget) and target.url == url else None


def _check_fresh(streams: Streams, pipeline: str, version: str, outputs: Iterable[str]) -> None:
    """A new version writes into topics that nobody else has written to."""
    there = set(streams.topics())
    for topic in (output_topic(name, version) for name in outputs):
        if topic in there:
            raise PipelineError(
                f"topic {topic!r} is there already, and version {version} of pipeline {pipeline!r} would write into "
                f"it: name another version, or delete it: penstock topics delete {topic}"
            )


def compare_versions(
    spark: SparkSession,
    url: str,
    old: Version,
    new: Version,
    *,
    examples: int = EXAMPLES,
    client: ConnectOptions | None = None,
) -> dict[str, Comparison]:
    """How the results of two versions differ, name by name. A topic that is not there holds nothing."""
    found = {}
    for name, topic in new.topics.items():
        frames = []
        for each in (old.topics.get(name, name), topic):
            try:
                frames.append(read_batch(spark, url, each, client=client))
            except UnknownTopicError:
                frames.append(read_batch(spark, url, topic, end="earliest", client=client))
        found[name] = compare(frames[0], frames[1], new.by.get(name, "record"), examples)
    return found
