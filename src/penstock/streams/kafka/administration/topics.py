"""Administration of topics: listing, describing, locating offsets and changing them."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping
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

from penstock.errors import ConfigError, PenstockError, StreamError, UnknownTopicError
from penstock.model import Position, PositionKind
from penstock.model.administration import ANSWER_TIMEOUT_S, ConfigValue, Offsets, Span, TopicSummary
from penstock.streams.declared import create_unless_known
from penstock.streams.kafka.failures import is_missing, is_passing, refused
from penstock.streams.kafka.plain import PlainConnection
from penstock.streams.kafka.security import PLAIN, Security
from penstock.streams.url import Host

SIZES_TIMEOUT_S: Final = 5.0
BROKER_DEFAULT: Final = -1

Answer = TypeVar("Answer")


class TopicAdministration:
    """`abc.Admin` of Kafka. Requests that change nothing are retried up to `timeout_s`."""

    def __init__(self, admin: AdminClient, timeout_s: float = ANSWER_TIMEOUT_S, *, security: Security = PLAIN) -> None:
        """`security` is for `sizes`, which does not go through `admin`."""
        self.admin = admin
        self._timeout_s = timeout_s
        self._security = security

    def within(self, timeout_s: float) -> TopicAdministration:
        return TopicAdministration(self.admin, timeout_s, security=self._security)

    def all(self) -> list[TopicSummary]:
        what = "the topics could not be listed"
        return look_up(what, lambda: list_topics(self.admin, self._timeout_s), self._timeout_s)

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic. Never creates the topic."""
        return self.describe(topic).partitions

    def describe(self, topic: str) -> TopicSummary:
        """The topic with its id. Never creates the topic."""
        what = f"topic {topic!r} could not be looked up"
        found = look_up(what, lambda: self.ask_for(topic).result(self._timeout_s), self._timeout_s)
        partitions = tuple(sorted(partition.id for partition in found.partitions))
        return TopicSummary(
            topic, partitions, topic.startswith("__"), None if found.topic_id is None else str(found.topic_id)
        )

    def require_partition(self, topic: str, partition: int) -> None:
        """Raise UnknownTopicError unless it exists: librdkafka would retry for long to find its offsets."""
        there = self.partitions_of(topic)
        if partition not in there:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}: it has {len(there)}")

    def ask_for(self, topic: str) -> concurrent.futures.Future[Any]:
        """Request a topic's description without waiting for the answer."""
        answer: concurrent.futures.Future[Any] = self.admin.describe_topics(TopicCollection([topic]))[topic]
        return answer

    def earliest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        return self._offsets(topic, dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, topic: str, partitions: Iterable[int]) -> Offsets:
        return self._offsets(topic, dict.fromkeys(partitions, OffsetSpec.latest()))

    def ends(self, topic: str, partitions: Iterable[int]) -> Offsets:
        return self._offsets(topic, dict.fromkeys(partitions, OffsetSpec.latest()), IsolationLevel.READ_UNCOMMITTED)

    def at_time(self, topic: str, time_ms: int, partitions: Iterable[int]) -> Offsets:
        asked = list(partitions)
        found = self._offsets(topic, dict.fromkeys(asked, OffsetSpec.for_timestamp(time_ms)))
        without = [partition for partition in asked if found[partition] < 0]
        return {**found, **self.latest(topic, without)}

    def locate(self, topic: str, position: Position, partitions: Iterable[int]) -> Offsets:
        match position.kind:
            case PositionKind.EARLIEST:
                return self.earliest(topic, partitions)
            case PositionKind.LATEST:
                return self.latest(topic, partitions)
            case PositionKind.TIME:
                return self.at_time(topic, position.time_ms, partitions)
            case PositionKind.POINTER:
                if not position.pointer.isdecimal():
                    raise ConfigError(f"{position.pointer!r} is not a pointer of topic {topic!r}: pass an offset")
                return dict.fromkeys(partitions, int(position.pointer))

    def spans(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Span]:
        asked = list(partitions)
        first = self._ask_offsets(dict.fromkeys(asked, OffsetSpec.earliest()))
        end = self._ask_offsets(dict.fromkeys(asked, OffsetSpec.latest()))
        return {place: Span(first[place], end[place]) for place in asked if place in first and place in end}

    def _offsets(
        self,
        topic: str,
        asked: Mapping[int, OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Offsets:
        found = self._ask_offsets({(topic, partition): spec for partition, spec in asked.items()}, isolation)
        missing = asked.keys() - {partition for _, partition in found}
        if missing:
            raise UnknownTopicError(f"there is no partition {min(missing)} of topic {topic!r}")
        return {partition: offset for (_, partition), offset in found.items()}

    def _ask_offsets(
        self, asked: Mapping[tuple[str, int], OffsetSpec], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[tuple[str, int], int]:
        """One offset for each partition that exists."""
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
        """The size of each partition in bytes, without replicas. Raises StreamError if a broker cannot be asked."""
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
        return create_unless_known(lambda: self.partitions_of(topic), lambda: self.create(topic, partitions, config))

    def delete(self, topic: str) -> None:
        answer_of(self.admin.delete_topics([topic])[topic], f"topic {topic!r} could not be deleted")

    def add_partitions(self, topic: str, total: int) -> None:
        what = f"topic {topic!r} could not be given {total} partitions"
        answer_of(self.admin.create_partitions([NewPartitions(topic, total)])[topic], what)

    def delete_before(self, topic: str, pointers: Mapping[int, int]) -> None:
        places = [TopicPartition(topic, partition, pointer) for partition, pointer in pointers.items()]
        for place, future in self.admin.delete_records(places).items():
            answer_of(future, f"records of topic {topic!r}, partition {place.partition}, could not be deleted")

    def config(self, topic: str) -> list[ConfigValue]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        what = f"the settings of topic {topic!r} could not be looked up"
        entries = look_up(what, lambda: self.admin.describe_configs([resource])[resource].result(ANSWER_TIMEOUT_S))
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return [ConfigValue(name, entry.value, entry.source != own) for name, entry in sorted(entries.items())]

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        operations = [
            ConfigEntry(name, value, incremental_operation=_operation(value)) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
        future = self.admin.incremental_alter_configs([resource])[resource]
        answer_of(future, f"the settings of topic {topic!r} could not be changed")

    def require(self, topic: str) -> TopicSummary:
        topics = self.all()
        for summary in topics:
            if summary.name == topic:
                return summary
        names = ", ".join(summary.name for summary in topics if not summary.internal) or "none yet"
        raise UnknownTopicError(f"there is no topic {topic!r}; there are: {names}")


def list_topics(admin: AdminClient, timeout_s: float) -> list[TopicSummary]:
    """All topics, internal ones too, by name. Raises KafkaException."""
    summaries = [
        TopicSummary(topic.topic, tuple(sorted(topic.partitions)), topic.topic.startswith("__"))
        for topic in admin.list_topics(timeout=timeout_s).topics.values()
        if topic.topic is not None
    ]
    return sorted(summaries, key=lambda summary: summary.name)


def _operation(value: str | None) -> AlterConfigOpType:
    return AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET


def answer_of(future: concurrent.futures.Future[Any], what: str) -> Any:
    """The answer to a request that changes something. Errors start with `what`."""
    try:
        return future.result(ANSWER_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise refused(what, error) from error


def look_up(what: str, ask: Callable[[], Answer], timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
    """The answer to a request that changes nothing, retried up to `timeout_s` while the broker is unavailable."""
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
