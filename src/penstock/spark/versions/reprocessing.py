"""Reprocessing: run a new version of a pipeline until it can become current.

A version is registered before it writes anything, and marked as ready once it has reached the end that its inputs had.
If it is interrupted in between, the next attempt resumes it from its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from penstock.abc import Stream
from penstock.errors import PipelineError, UnknownTopicError
from penstock.spark.reading import read_batch
from penstock.spark.run.plans import sources
from penstock.spark.run.queries import PlannedQuery
from penstock.spark.sink.target import Target
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.versions.comparing import EXAMPLES, Comparison, compare
from penstock.spark.versions.names import FIRST, By, output_topic
from penstock.spark.versions.register import Register, Version
from penstock.streams.options import ConnectOptions
from penstock.streams.url import without_password

Spans = dict[int, tuple[int, int]]
"""The first pointer of each partition, and the pointer after its last record."""

_TOPIC: Final = "topic "


class CatchUpProgress:
    """The input of each query at the time of construction, and how much of it has been read."""

    def __init__(self, stream: Stream, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        known: dict[str, Spans] = {}
        self._inputs: dict[str, list[Spans]] = {}
        for planned in pipeline.queries:
            self._inputs[planned.name] = [_spans(stream, topic, known) for topic in _topics(planned)]

    @property
    def total(self) -> int:
        """The number of pointers to read. With transactions or compaction, there are fewer records."""
        return sum(end - start for spans in self._inputs.values() for each in spans for start, end in each.values())

    @property
    def done(self) -> int:
        """How many of them finished batches have read, including those of an earlier run."""
        progress = self._pipeline.progress()
        return sum(
            _passed(spans, source.get("end") or {})
            for query, inputs in self._inputs.items()
            if query in progress
            for spans, source in zip(inputs, progress[query].sources, strict=False)
        )


def _passed(spans: Spans, pointers: Mapping[str, int]) -> int:
    """The number of pointers read. Partitions are named `0` or `spend/0`."""
    passed = 0
    for name, pointer in pointers.items():
        partition = int(name.rpartition("/")[2])
        if partition in spans:
            start, end = spans[partition]
            passed += max(0, min(pointer, end) - start)
    return passed


def _topics(planned: PlannedQuery) -> list[str]:
    return [name.removeprefix(_TOPIC) if name.startswith(_TOPIC) else "" for name in sources(planned.frame)]


def _spans(stream: Stream, topic: str, known: dict[str, Spans]) -> Spans:
    if topic not in known:
        known[topic] = {}
        if topic:
            opened = stream.open_topic(topic)
            try:
                known[topic] = {partition: opened.span(partition) for partition in opened.partitions()}
            except UnknownTopicError:  # the query will raise it
                known[topic] = {}
            finally:
                opened.close()
    return known[topic]


if TYPE_CHECKING:
    from penstock.spark.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class VersionRun:
    """A version of a pipeline that is being reprocessed."""

    pipeline: Pipeline
    version: str
    before: str
    """The version that was current at the start."""
    outputs: Mapping[str, By]
    """The output topics by their names in the program, and how they are compared."""
    elsewhere: tuple[str, ...]
    """Outputs that are not topics of its stream: they are not compared, and have no alias."""
    resumed: bool
    catching_up: CatchUpProgress

    @property
    def finished(self) -> bool:
        """Whether every query has reached the end of its inputs."""
        progress = self.pipeline.progress()
        return all(
            query.name in progress and progress[query.name].state == "finished" for query in self.pipeline.queries
        )


def begin(pipeline: Pipeline) -> VersionRun:
    """Register this version as being reprocessed, before its queries start."""
    version = pipeline.version or FIRST
    outputs, elsewhere = outputs_of(pipeline, version)
    if not outputs:
        raise PipelineError(
            f"pipeline {pipeline.name!r} writes no topic of {pipeline.url}, so there is nothing to compare or switch: "
            "run it under another name instead"
        )
    register = Register(pipeline.connection)
    versions = register.versions(pipeline.name)
    before = register.current(pipeline.name)
    resumed = any(each.version == version for each in versions)
    if not resumed:
        _check_fresh(pipeline.connection, pipeline.name, version, outputs)
    checkpoints = pipeline.folder.path.rpartition("/")[0]
    register.begin(pipeline.name, version, outputs, checkpoints)
    return VersionRun(
        pipeline, version, before, outputs, elsewhere, resumed, CatchUpProgress(pipeline.connection, pipeline)
    )


def caught_up(begun: VersionRun) -> None:
    """Mark the version as ready."""
    Register(begun.pipeline.connection).caught_up(begun.pipeline.name, begun.version)


def outputs_of(pipeline: Pipeline, version: str) -> tuple[dict[str, By], tuple[str, ...]]:
    """The output topics of a pipeline, and the labels of its other targets."""
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
    return target.name if isinstance(target, TopicTarget) and without_password(target.url) == url else None


def _check_fresh(stream: Stream, pipeline: str, version: str, outputs: Iterable[str]) -> None:
    there = set(stream.topics())
    for topic in (output_topic(name, version) for name in outputs):
        if topic in there:
            raise PipelineError(
                f"topic {topic!r} already exists, and version {version} of pipeline {pipeline!r} would write to it: "
                f"choose another version, or delete the topic: penstock topics delete {topic}"
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
    """Compare the results of two versions, by output name. A missing topic counts as empty."""
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
