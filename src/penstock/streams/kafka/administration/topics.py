"""Administration of topics: listing, describing, locating offsets and changing them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
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
from penstock.streams.kafka.failures import is_missing, is_passing, is_unreachable, reason_of, refused
from penstock.streams.kafka.plain import PlainConnection
from penstock.streams.kafka.security import PLAIN, Security
from penstock.streams.url import Host

logger = logging.getLogger(__name__)

SIZES_TIMEOUT_S: Final = 5.0
BROKER_DEFAULT: Final = -1
REPLICATION_FACTOR: Final = "replication.factor"
"""Taken from the settings of a new topic; to Kafka it is not a setting but a part of the request."""
MIN_INSYNC: Final = "min.insync.replicas"
_DEFAULT_FACTOR: Final = "default.replication.factor"
_ATTEMPT_S: Final = 5.0
"""How long one attempt of a change takes: librdkafka waits for a controller that is gone until its time is over."""
_NO_TOPIC: Final = "__consumer_offsets"
"""A topic that any client may ask for, and that no broker creates for it."""
_KNOWN_WITHIN_S: Final = 5.0
"""Of several brokers, some hear of a new topic later than the one that created it."""
_KNOWN_POLL_S: Final = 0.05
LEADER_TIMEOUT_S: Final = 5.0
"""How long one leader is asked for offsets. After that another broker may lead."""

Answer = TypeVar("Answer")


class TopicAdministration:
    """`abc.Admin` of Kafka. Requests that change nothing are retried up to `timeout_s`."""

    def __init__(self, admin: AdminClient, timeout_s: float = ANSWER_TIMEOUT_S, *, security: Security = PLAIN) -> None:
        """`security` is for `sizes`, which does not go through `admin`."""
        self.admin = admin
        self._timeout_s = timeout_s
        self._security = security
        self._created_s: dict[str, float] = {}
        """When this object created topics."""

    def within(self, timeout_s: float) -> TopicAdministration:
        same = TopicAdministration(self.admin, timeout_s, security=self._security)
        same._created_s = self._created_s
        return same

    def all(self) -> list[TopicSummary]:
        what = "the topics could not be listed"
        return look_up(what, lambda: list_topics(self.admin, self._timeout_s), self._timeout_s)

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic. Never creates the topic."""
        return self.describe(topic).partitions

    def describe(self, topic: str) -> TopicSummary:
        """The topic with its id. Never creates the topic."""
        what = f"topic {topic!r} could not be looked up"
        while True:  # ends with an answer, or when every broker must know a topic that was just created
            try:
                found = look_up(what, lambda: self.ask_for(topic).result(self._timeout_s), self._timeout_s)
                break
            except UnknownTopicError:
                if time.monotonic() > self._created_s.get(topic, -math.inf) + _KNOWN_WITHIN_S:
                    raise
                time.sleep(_KNOWN_POLL_S)
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
        """One offset for each existing partition."""
        if not asked:
            return {}
        places = {TopicPartition(*place): spec for place, spec in asked.items()}

        def ask() -> dict[tuple[str, int], int]:
            found = {}
            patience_s = min(LEADER_TIMEOUT_S, self._timeout_s)
            futures = self.admin.list_offsets(places, isolation_level=isolation, request_timeout=patience_s)
            for place, future in futures.items():
                try:
                    found[place.topic, place.partition] = future.result(self._timeout_s).offset
                except KafkaException as error:
                    if not is_missing(error):
                        raise
            return found

        refresh = partial(refresh_leaders, self.admin)
        return look_up("offsets could not be looked up", ask, self._timeout_s, before_retry=refresh)

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
        settings = dict(config)
        what = f"topic {topic!r} could not be created"
        factor = _number(settings.pop(REPLICATION_FACTOR, None), REPLICATION_FACTOR, what)
        if (least := _number(settings.get(MIN_INSYNC), MIN_INSYNC, what)) is not None:
            self._check_min_insync(what, least, factor)
        try:
            new = NewTopic(
                topic,
                num_partitions=BROKER_DEFAULT if partitions is None else partitions,
                replication_factor=BROKER_DEFAULT if factor is None else factor,
                config=settings,
            )
            self._change(
                what,
                lambda attempt_s: self.admin.create_topics([new], request_timeout=attempt_s)[topic],
                KafkaError.TOPIC_ALREADY_EXISTS,
            )
            self._created_s[topic] = time.monotonic()
        except ConfigError as error:
            reason = None if error.__cause__ is None else reason_of(error.__cause__)
            if factor is None or reason is None or reason.code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            raise ConfigError(
                f"{error} Lower {REPLICATION_FACTOR}={factor}, or use a cluster with as many brokers"
            ) from error
        except ValueError as error:
            raise refused(what, error) from error

    def _check_min_insync(self, what: str, least: int, factor: int | None) -> None:
        """Refuse what Kafka accepts: it would need all replicas instead, so that one lost broker stops all writes."""
        is_default = factor is None
        if factor is None:
            factor = look_up(what, self._default_factor, self._timeout_s)
        if factor is None or least <= factor:
            return
        if is_default and factor == 1:
            logger.warning(
                "%s=%d has no effect on a topic with one replica, the default of these brokers: its records are lost "
                "with its broker. Pass %s, if there are several",
                MIN_INSYNC,
                least,
                REPLICATION_FACTOR,
            )
            return
        raise ConfigError(
            f"{what}: {MIN_INSYNC}={least} cannot be met by {factor} replicas. Lower it to {max(1, factor - 1)}, so "
            f"that writes survive the loss of a broker, or raise {REPLICATION_FACTOR}"
        )

    def _default_factor(self) -> int | None:
        """The replicas of topics that are created without a number; None if the brokers do not tell."""
        broker = min(self.admin.list_topics(_NO_TOPIC, timeout=self._timeout_s).brokers)
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        found = self.admin.describe_configs([resource])[resource].result(ANSWER_TIMEOUT_S).get(_DEFAULT_FACTOR)
        return None if found is None or found.value is None else int(found.value)

    def _change(
        self, what: str, ask: Callable[[float], concurrent.futures.Future[Any]], done: int | None = None
    ) -> Any:
        """The answer to a request to the controller. Errors start with `what`.

        librdkafka does not look for another controller when the one that it knows is gone, so this does. An attempt
        without an answer may have been successful: then the next one fails with `done`.
        """
        deadline_s = time.monotonic() + self._timeout_s
        pause_s, is_first = 0.05, True
        while True:
            try:
                return ask(_ATTEMPT_S).result(2 * _ATTEMPT_S)
            except (KafkaException, TimeoutError) as error:
                reason = reason_of(error)
                if not is_first and reason is not None and reason.code() == done:
                    return None
                if not is_unreachable(error) or time.monotonic() + pause_s > deadline_s:
                    raise refused(what, error) from error
            is_first = False
            time.sleep(pause_s)
            pause_s = min(1.0, 2 * pause_s)
            with contextlib.suppress(KafkaException):
                self.admin.list_topics(_NO_TOPIC, timeout=_ATTEMPT_S)  # tells librdkafka the controller

    def provide(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        return create_unless_known(lambda: self.partitions_of(topic), lambda: self.create(topic, partitions, config))

    def delete(self, topic: str) -> None:
        self._created_s.pop(topic, None)
        self._change(
            f"topic {topic!r} could not be deleted",
            lambda attempt_s: self.admin.delete_topics([topic], request_timeout=attempt_s)[topic],
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def add_partitions(self, topic: str, total: int) -> None:
        what = f"topic {topic!r} could not be given {total} partitions"
        self._change(
            what,
            lambda attempt_s: self.admin.create_partitions([NewPartitions(topic, total)], request_timeout=attempt_s)[
                topic
            ],
            KafkaError.INVALID_PARTITIONS,
        )

    def delete_before(self, topic: str, pointers: Mapping[int, int]) -> None:
        refresh_leaders(self.admin)
        asked = self._ask_to_delete(TopicPartition(topic, *place) for place in pointers.items())

        def delete(place: TopicPartition) -> None:
            future = asked.pop(place, None) or self._ask_to_delete([place])[place]
            try:
                future.result(2 * _ATTEMPT_S)
            except (KafkaException, TimeoutError) as error:
                # A leader waits for its replicas. Those of a leader that has just changed may not hear of it before
                # the next record: what counts is what the leader itself still has.
                if not is_unreachable(error) or self.earliest(topic, [place.partition])[place.partition] < place.offset:
                    raise

        for place in list(asked):
            what = f"records of topic {topic!r}, partition {place.partition}, could not be deleted"
            look_up(what, partial(delete, place), self._timeout_s, partial(refresh_leaders, self.admin))

    def _ask_to_delete(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, concurrent.futures.Future[Any]]:
        # A copy: the client keeps its own to find the future of an answer.
        return dict(self.admin.delete_records(list(places), request_timeout=_ATTEMPT_S, operation_timeout=_ATTEMPT_S))

    def config(self, topic: str) -> list[ConfigValue]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        what = f"the settings of topic {topic!r} could not be looked up"
        entries = look_up(what, lambda: self.admin.describe_configs([resource])[resource].result(ANSWER_TIMEOUT_S))
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return [ConfigValue(name, entry.value, entry.source != own) for name, entry in sorted(entries.items())]

    def change_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        what = f"the settings of topic {topic!r} could not be changed"
        if (least := _number(changes.get(MIN_INSYNC), MIN_INSYNC, what)) is not None:
            replicas = look_up(what, lambda: self._replicas_of(topic), self._timeout_s)
            if 1 < replicas < least:
                raise ConfigError(
                    f"{what}: {MIN_INSYNC}={least} cannot be met by its {replicas} replicas. Lower it to "
                    f"{replicas - 1}, so that writes survive the loss of a broker"
                )
        operations = [
            ConfigEntry(name, value, incremental_operation=_operation(value)) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=operations)
        future = self.admin.incremental_alter_configs([resource])[resource]
        answer_of(future, what)

    def _replicas_of(self, topic: str) -> int:
        """The fewest replicas of a partition."""
        partitions = self.ask_for(topic).result(self._timeout_s).partitions
        return min((len(partition.replicas) for partition in partitions), default=0)

    def require(self, topic: str) -> TopicSummary:
        topics = self.all()
        for summary in topics:
            if summary.name == topic:
                return summary
        names = ", ".join(summary.name for summary in topics if not summary.internal) or "none yet"
        raise UnknownTopicError(f"there is no topic {topic!r}; there are: {names}")


def list_topics(admin: AdminClient, timeout_s: float) -> list[TopicSummary]:
    """The metadata of all topics by name, internal ones too. KafkaException if the brokers do not answer."""
    summaries = [
        TopicSummary(topic.topic, tuple(sorted(topic.partitions)), topic.topic.startswith("__"))
        for topic in admin.list_topics(timeout=timeout_s).topics.values()
        if topic.topic is not None
    ]
    return sorted(summaries, key=lambda summary: summary.name)


def _number(text: str | None, name: str, what: str) -> int | None:
    """The value of a setting that counts replicas. Raises ConfigError."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{what}: {name}={text} must be an integer >= 1")
    return int(text)


def _operation(value: str | None) -> AlterConfigOpType:
    return AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET


def answer_of(future: concurrent.futures.Future[Any], what: str) -> Any:
    """The answer to a request that changes something. Errors start with `what`."""
    try:
        return future.result(ANSWER_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise refused(what, error) from error


def refresh_leaders(admin: AdminClient, timeout_s: float = LEADER_TIMEOUT_S) -> None:
    """Make librdkafka ask again who leads which partition.

    Its admin client asks once and keeps the answer for 15 minutes, even after a leader has said that it no longer is
    one.
    """
    with contextlib.suppress(KafkaException):  # the request that needs the leaders says what is wrong
        admin.list_topics(timeout=min(LEADER_TIMEOUT_S, timeout_s))


def look_up(
    what: str,
    ask: Callable[[], Answer],
    timeout_s: float = ANSWER_TIMEOUT_S,
    before_retry: Callable[[float], None] = lambda _: None,
) -> Answer:
    """The answer to a request that changes nothing, retried up to `timeout_s` while the broker is unavailable.

    `before_retry` is called with the seconds that are left.
    """
    deadline_s = time.monotonic() + timeout_s
    pause_s = 0.02
    while True:
        try:
            return ask()
        except (KafkaException, TimeoutError) as error:
            if not is_passing(error) or time.monotonic() + pause_s > deadline_s:
                raise refused(what, error) from error
        time.sleep(pause_s)
        before_retry(max(pause_s, deadline_s - time.monotonic()))
        pause_s = min(1.0, 2 * pause_s)
