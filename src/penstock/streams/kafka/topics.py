"""Topics: which there are, what is in them, and changing them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.errors import PenstockError, StreamError, TopicExistsError, UnknownTopicError
from penstock.model import Position, PositionKind
from penstock.streams.kafka.failures import is_missing, is_passing, refused
from penstock.streams.kafka.plain import PlainConnection
from penstock.streams.kafka.security import PLAIN, Security
from penstock.streams.url import Host

ANSWER_TIMEOUT_S: Final = 30.0
SIZES_TIMEOUT_S: Final = 5.0
BROKER_DEFAULT: Final = -1

Answer = TypeVar("Answer")
Offsets = dict[int, int]
"""Partition to offset."""


@dataclass(frozen=True, slots=True)
class TopicSummary:
    name: str
    partitions: tuple[int, ...]
    internal: bool


@dataclass(frozen=True, slots=True)
class Span:
    """What can be read in a partition: from the start offset to before the end offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A setting of a topic."""

    name: str
    value: str | None
    is_default: bool
    """Whether it is the broker's, and not set for this topic."""


class TopicAdministration:
    """Requests about topics. Each waits for its answer; what changes nothing is asked again, up to `timeout_s`."""

    def __init__(self, admin: AdminClient, timeout_s: float = ANSWER_TIMEOUT_S, *, security: Security = PLAIN) -> None:
        """`security` is for the sizes, which are not asked for through `admin`."""
        self.admin = admin
        self._timeout_s = timeout_s
        self._security = security

    def all(self) -> list[TopicSummary]:
        """All topics, the broker's own among them, in the order of their names."""
        what = "the topics could not be listed"
        found = look_up(what, lambda: self.admin.list_topics(timeout=self._timeout_s).topics.values(), self._timeout_s)
        summaries = [
            TopicSummary(topic.topic, tuple(sorted(topic.partitions)), topic.topic.startswith("__"))
            for topic in found
            if topic.topic is not None
        ]
        return sorted(summaries, key=lambda summary: summary.name)

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The numbers of a topic's partitions. Never creates the topic."""
        what = f"topic {topic!r} could not be looked up"
        description = look_up(what, lambda: self.ask_for(topic).result(self._timeout_s), self._timeout_s)
        return tuple(sorted(partition.id for partition in description.partitions))

    def require_partition(self, topic: str, partition: int) -> None:
        """UnknownTopicError unless it is there. Asked for the offsets of one that is not, librdkafka tries for long."""
        there = self.partitions_of(topic)
        if partition not in there:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}: it has {len(there)}")

    def ask_for(self, topic: str) -> concurrent.futures.Future[Any]:
        """Ask for a topic's description, without waiting for the answer."""
        answer: concurrent.futures.Future[Any] = self.admin.describe_topics(TopicCollection([topic]))[topic]
        return answer

    def earliest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The first offset that can be read in each of the partitions."""
        return self._offsets(topic, dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The offset behind the last one that can be read: records of open transactions cannot."""
        return self._offsets(topic, dict.fromkeys(partitions, OffsetSpec.latest()))

    def ends(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """The offset behind the last one in each of the partitions, be it of an open transaction."""
        asked: dict[tuple[str, int], OffsetSpec] = {(topic, each): OffsetSpec.latest() for each in partitions}
        found = self._ask_offsets(asked, IsolationLevel.READ_UNCOMMITTED)
        return {partition: offset for (_, partition), offset in found.items()}

    def at_time(self, topic: str, time_ms: int, partitions: Iterable[int]) -> Offsets:
        """The first offset from a time on; where there is none, the latest."""
        asked = list(partitions)
        found = self._offsets(topic, dict.fromkeys(asked, OffsetSpec.for_timestamp(time_ms)))
        without = [partition for partition in asked if found[partition] < 0]
        return {**found, **self.latest(topic, without)}

    def locate(self, topic: str, position: Position, partitions: Iterable[int]) -> Offsets:
        """The offset that a position means in each of the partitions. An offset is not looked up but taken as it is."""
        match position.kind:
            case PositionKind.EARLIEST:
                return self.earliest(topic, partitions)
            case PositionKind.LATEST:
                return self.latest(topic, partitions)
            case PositionKind.TIME:
                return self.at_time(topic, position.time_ms, partitions)
            case PositionKind.POINTER:
                return dict.fromkeys(partitions, int(position.pointer))

    def spans(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Span]:
        """What can be read in partitions of any topics; those that are not there (any more) are left out."""
        asked = list(partitions)
        first = self._ask_offsets(dict.fromkeys(asked, OffsetSpec.earliest()))
        end = self._ask_offsets(dict.fromkeys(asked, OffsetSpec.latest()))
        return {place: Span(first[place], end[place]) for place in asked if place in first and place in end}

    def _offsets(self, topic: str, asked: Mapping[int, OffsetSpec]) -> Offsets:
        found = self._ask_offsets({(topic, partition): spec for partition, spec in asked.items()})
        missing = asked.keys() - {partition for _, partition in found}
        if missing:
            raise UnknownTopicError(f"there is no partition {min(missing)} of topic {topic!r}")
        return {partition: offset for (_, partition), offset in found.items()}

    def _ask_offsets(
        self, asked: Mapping[tuple[str, int], OffsetSpec], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[tuple[str, int], int]:
        """One offset for each partition; those that are not there are left out."""
        if not asked:
            return {}
        places = {TopicPartition(*place): spec for place, spec in asked.items()}

        def ask() -> dict[tuple[str, int], int]:
            found = {}
            futures = self.admin.list_offsets(places, isolation_level=isolation)
            for place, future in futures.items():
                try:
                    found[place.topic, place.partition] = future.result(self._timeout_s).offset
                except KafkaException as error:
                    if not is_missing(error):
                        raise
            return found

        return look_up("offsets could not be looked up", ask, self._timeout_s)

    def sizes(self) -> dict[tuple[str, int], int]:
        """How many bytes each partition takes, copies not counted.

        StreamError says why that cannot be known: a broker is away or forbids it, or wants a login other than PLAIN.
        """
        sizes: dict[tuple[str, int], int] = {}
        try:
            for broker in self.admin.list_topics(timeout=ANSWER_TIMEOUT_S).brokers.values():
                host = Host(str(broker.host), int(broker.port))
                with PlainConnection(host, SIZES_TIMEOUT_S, self._security) as connection:
                    for place, size_bytes in connection.partition_sizes().items():
                        sizes[place] = max(size_bytes, sizes.get(place, 0))
        except (KafkaException, OSError, PenstockError) as error:
            raise StreamError(f"the sizes of topics are not known: {error}") from error
        return sizes

    def create(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
        new = NewTopic(
            topic,
            num_partitions=BROKER_DEFAULT if partitions is None else partitions,
            replication_factor=BROKER_DEFAULT,
            config=dict(config),
        )
        what = f"topic {topic!r} could not be created"
        try:
            future = self.admin.create_topics([new])[topic]
        except (KafkaException, ValueError) as error:
            raise refused(what, error) from error
        answer_of(future, what)

    def provide(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Create a topic unless it is there, and give how many partitions it has once every broker may be asked."""
        if topic not in {each.name for each in self.all()}:
            with contextlib.suppress(TopicExistsError):  # somebody else may be quicker
                self.create(topic, partitions, config)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                return len(self.partitions_of(topic))
            except UnknownTopicError:
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        answer_of(self.admin.delete_topics([topic])[topic], f"topic {topic!r} could not be deleted")

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, `total` in all."""
        what = f"topic {topic!r} could not be given {total} partitions"
        answer_of(self.admin.create_partitions([NewPartitions(topic, total)])[topic], what)

    def config(self, topic: str) -> list[ConfigValue]:
        """All settings of a topic, in the order of their names."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        what = f"the settings of topic {topic!r} could not be looked up"
        entries = look_up(what, lambda: self.admin.describe_configs([resource])[resource].result(ANSWER_TIMEOUT_S))
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return [ConfigValue(name, entry.value, entry.source != own) for name, entry in sorted(entries.items())]

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set settings of a topic; None takes one back to the broker's default. The others stay as they are."""
        operations = [
            ConfigEntry(name, value, incremental_operation=_operation(value)) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
        future = self.admin.incremental_alter_configs([resource])[resource]
        answer_of(future, f"the settings of topic {topic!r} could not be changed")

    def require(self, topic: str) -> TopicSummary:
        """The topic of this name; UnknownTopicError names those that there are."""
        topics = self.all()
        for summary in topics:
            if summary.name == topic:
                return summary
        names = ", ".join(summary.name for summary in topics if not summary.internal) or "none yet"
        raise UnknownTopicError(f"there is no topic {topic!r}; there are: {names}")


def _operation(value: str | None) -> AlterConfigOpType:
    return AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET


def answer_of(future: concurrent.futures.Future[Any], what: str) -> Any:
    """The answer to a request that changes something. `what` is the sentence that an error begins with."""
    try:
        return future.result(ANSWER_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise refused(what, error) from error


def look_up(what: str, ask: Callable[[], Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
    """The answer to a request that changes nothing, asked again while the broker is away, up to `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = 0.02
    while True:
        try:
            return ask()
        except (KafkaException, TimeoutError) as error:
            if not is_passing(error) or time.monotonic() + pause_s > deadline_s:
                raise refused(what, error) from error
        time.sleep(pause_s)
        pause_s = min(1.0, 2 * pause_s)
