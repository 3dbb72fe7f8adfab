"""The targets of a version of a pipeline, derived from those in its program."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.serde import Topic
from penstock.spark.sink.functions import Console
from penstock.spark.sink.target import Target
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.versions.names import FIRST, check_version, output_topic


@runtime_checkable
class VersionedTarget(Protocol):
    """A target with a separate destination for each version."""

    def for_version(self, version: str) -> Target: ...


@dataclass(frozen=True, slots=True, eq=False)
class VersionedTopic(TopicTarget):
    """A topic of a version. Rows that name their own topic go to that topic of the version."""

    version: str = dataclasses.field(default="", kw_only=True)

    def encoded(self, frame: DataFrame) -> DataFrame:
        records = TopicTarget.encoded(self, frame)
        return records.withColumn("topic", F.concat(F.col("topic"), F.lit(f".{self.version}")))


def versioned(target: Target, version: str | None) -> Target:
    """The target of this version: topic `spend.v2`, table `spend_v2`, folder `spend.v2`.

    Raises ConfigError for a target without versions: a later version would write into the results of the first.
    """
    if version is None or version == FIRST:
        return target
    check_version(version)
    if isinstance(target, VersionedTarget):
        return target.for_version(version)
    if isinstance(target, TopicTarget):
        return _versioned_topic(target, version)
    if isinstance(target, Console):
        return target
    raise ConfigError(
        f"{target.label} has no versions, so version {version} would write into the results of the current one: write "
        "to a topic, a table or a folder, or give the target a method for_version(version)"
    )


def _versioned_topic(target: TopicTarget, version: str) -> VersionedTopic:
    topic = target.topic
    if topic is not None:
        topic = _renamed(topic, version) if isinstance(topic, Topic) else output_topic(topic, version)
    given = {field.name: getattr(target, field.name) for field in dataclasses.fields(TopicTarget) if field.init}
    return VersionedTopic(**{**given, "topic": topic, "version": version})


def _renamed(topic: Topic[Any], version: str) -> Topic[Any]:
    return Topic(
        output_topic(topic.name, version),
        topic.type,
        key=topic.key,
        serde=topic.serde,
        key_serde=topic.key_serde,
        partitions=topic.partitions,
    )
