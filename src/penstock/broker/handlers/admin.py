"""Creating and deleting topics: CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, reported
from penstock.broker.handlers.topic_checks import check_no_collision, check_not_reserved, check_replicas
from penstock.broker.request import Apis, Fields, Request
from penstock.errors import TopicExistsError, UnknownTopicError
from penstock.log.configs.described import describe_topic
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.store import Topic, check_topic_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""How many partitions one request may create. Kafka has the same limit."""

DEFAULT: Final = -1
"""Means "the broker's default" in numbers of partitions and replicas."""

_CONFIGS_SINCE_VERSION: Final = 5
_DELETION_DISABLED_SINCE_VERSION: Final = 3


async def create_topics(broker: Broker, request: Request) -> Fields:
    wanted = request.body.topics
    times = Counter(topic.name for topic in wanted)
    partition_count = sum(len(topic.assignments) or max(topic.num_partitions, 1) for topic in wanted)
    results: dict[str, dict[str, Any]] = {}
    for topic in wanted:
        if topic.name in results:
            continue
        results[topic.name] = {"name": topic.name, "topic_id": None, "configs": []}
        with reported() as outcome:
            _check_once(topic.name, times)
            if partition_count > MAX_PARTITIONS_PER_REQUEST:
                raise ProtocolError(
                    ErrorCode.policy_violation,
                    f"the request asks for more than {MAX_PARTITIONS_PER_REQUEST} partitions; "
                    "ask for fewer, or split it into several requests",
                )
            if not request.body.validate_only:
                await broker.drop_old_offsets(topic.name)
            results[topic.name] |= _create(broker, request, topic)
        results[topic.name] |= outcome
        await asyncio.sleep(0)  # let other clients run between two topics
    return {"topics": list(results.values())}


def _check_once(name: str, times: Counter[str]) -> None:
    if times[name] > 1:
        raise ProtocolError(
            ErrorCode.invalid_request, f"the request names topic {name!r} {times[name]} times; name it once"
        )


def _create(broker: Broker, request: Request, wanted: Any) -> Fields:
    """Create one topic, or only check whether it can be created. Raises PenstockError if it cannot."""
    name = wanted.name
    check_topic_name(name)
    if broker.topics.get(name) is not None:
        raise TopicExistsError(f"topic {name!r} already exists; choose another name, or delete it first")
    check_not_reserved(name)
    check_no_collision(name, broker.topics.names())
    partition_count = _partition_count(broker, wanted)
    overrides = _overrides(wanted.configs)
    topic_id: uuid.UUID | None = None
    if request.body.validate_only:
        TopicConfig.parse(overrides, broker.settings.overrides)
    else:
        topic_id = broker.topics.create(name, partition_count, overrides).id
    return {
        "topic_id": topic_id,
        "num_partitions": partition_count,
        "replication_factor": 1,
        "configs": _configs(broker, overrides) if request.version >= _CONFIGS_SINCE_VERSION else [],
    }


def _partition_count(broker: Broker, wanted: Any) -> int:
    if wanted.assignments:
        return _assigned_count(broker, wanted)
    if wanted.replication_factor not in (DEFAULT, 1):
        raise ProtocolError(
            ErrorCode.invalid_replication_factor,
            f"topic {wanted.name!r} cannot have {wanted.replication_factor} replicas: penstock's log is one node. "
            "Use 1, or -1 for the default; use Apache Kafka for replication.",
        )
    if wanted.num_partitions == DEFAULT:
        return broker.settings.default_partitions
    if wanted.num_partitions < 1:
        raise ProtocolError(
            ErrorCode.invalid_partitions,
            f"topic {wanted.name!r} cannot have {wanted.num_partitions} partitions; "
            f"use at least 1, or -1 for the default of {broker.settings.default_partitions}",
        )
    return int(wanted.num_partitions)


def _assigned_count(broker: Broker, wanted: Any) -> int:
    if wanted.replication_factor != DEFAULT or wanted.num_partitions != DEFAULT:
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"topic {wanted.name!r} has an assignment of its partitions, which determines their number; "
            "leave the numbers of partitions and replicas at -1, or omit the assignment",
        )
    numbers = sorted(assignment.partition_index for assignment in wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise ProtocolError(
            ErrorCode.invalid_replica_assignment,
            f"topic {wanted.name!r} has an assignment of partitions {', '.join(map(str, numbers))}; "
            "number them from 0 without a gap, each once",
        )
    for assignment in wanted.assignments:
        check_replicas(assignment.broker_ids, broker.node.node_id)
    return len(numbers)


def _overrides(configs: Iterable[Any]) -> dict[str, str]:
    overrides = {}
    for config in configs:
        if config.value is None:
            raise ProtocolError(
                ErrorCode.invalid_config, f"{config.name} is null; give it a value, or omit it for the default"
            )
        overrides[config.name] = config.value
    return overrides


def _configs(broker: Broker, overrides: dict[str, str]) -> list[Fields]:
    return [
        {
            "name": row.name,
            "value": row.value,
            "read_only": row.read_only,
            "config_source": row.source.value,
            "is_sensitive": False,
        }
        for row in describe_topic(overrides, broker.configs.layers())
    ]


async def delete_topics(broker: Broker, request: Request) -> Fields:
    states = request.get("topics")
    named = [(state.name, state.topic_id) for state in states] if states is not None else []
    named += [(name, None) for name in request.get("topic_names", ())]
    times = Counter(_topic_names(broker, named))
    results: dict[tuple[str | None, uuid.UUID | None], Fields] = {}
    for name, topic_id in named:
        if (name, topic_id) in results:
            continue
        shown_name, shown_id = name, topic_id
        with reported() as outcome:
            topic = _deletable(broker, request, name, topic_id, times)
            shown_name, shown_id = topic.name, topic.id
            broker.topics.delete(topic.name)
            # Even if the client disconnects: a new topic of that name must not be read from the old offsets.
            await asyncio.shield(broker.drop_old_offsets(topic.name))
        results[name, topic_id] = {"name": shown_name, "topic_id": shown_id, **outcome}
        await asyncio.sleep(0)  # let other clients run between two topics
    return {"responses": list(results.values())}


def _topic_names(broker: Broker, named: Iterable[tuple[str | None, uuid.UUID | None]]) -> Iterable[str]:
    for name, topic_id in named:
        meant = name if topic_id is None else broker.topics.name_of(topic_id)
        if meant is not None:
            yield meant


def _deletable(
    broker: Broker, request: Request, name: str | None, topic_id: uuid.UUID | None, times: Counter[str]
) -> Topic:
    if not broker.settings.delete_topics:
        newer = request.version >= _DELETION_DISABLED_SINCE_VERSION
        raise ProtocolError(
            ErrorCode.topic_deletion_disabled if newer else ErrorCode.invalid_request,
            "topics cannot be deleted here: the broker runs with delete.topic.enable=false",
        )
    if (name is None) == (topic_id is None):
        raise ProtocolError(ErrorCode.invalid_request, "give either the name of a topic or its id")
    topic = broker.topics.get(name) if name is not None else None
    if topic_id is not None:
        topic = broker.topics.by_id(topic_id)
        if topic is None:
            raise ProtocolError(ErrorCode.unknown_topic_id, f"there is no topic with id {topic_id}")
    if topic is None:
        raise UnknownTopicError(f"there is no topic {name!r}")
    _check_once(topic.name, times)
    if topic.internal:
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"{topic.name} is the broker's own topic: groups or transactions would be lost with it",
        )
    return topic


async def create_partitions(broker: Broker, request: Request) -> Fields:
    times = Counter(topic.name for topic in request.body.topics)
    results: dict[str, Fields] = {}
    room = MAX_PARTITIONS_PER_REQUEST
    for wanted in request.body.topics:
        if wanted.name in results:
            continue
        with reported() as outcome:
            _check_once(wanted.name, times)
            room -= _check_increase(broker, wanted, room)
            if not request.body.validate_only:
                broker.topics.add_partitions(wanted.name, wanted.count)
        results[wanted.name] = {"name": wanted.name, **outcome}
        await asyncio.sleep(0)  # let other clients run between two topics
    return {"results": list(results.values())}


def _check_increase(broker: Broker, wanted: Any, room: int) -> int:
    """How many partitions would be added. Raises PenstockError if they cannot be."""
    topic = broker.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicError(f"there is no topic {wanted.name!r}; create it with as many partitions as you want")
    if topic.internal:
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"{topic.name} is the broker's own topic: with more partitions, stored state could not be found",
        )
    added = wanted.count - len(topic.partitions)
    if added < 1:
        raise ProtocolError(
            ErrorCode.invalid_partitions,
            f"topic {topic.name!r} has {len(topic.partitions)} partitions; {wanted.count} would not be more. "
            "Partitions can only be added.",
        )
    if added > room:
        raise ProtocolError(
            ErrorCode.policy_violation,
            f"the request asks for more than {MAX_PARTITIONS_PER_REQUEST} new partitions; split it into several",
        )
    if wanted.assignments is not None:
        _check_new_assignments(broker, wanted.assignments, added)
    return int(added)


def _check_new_assignments(broker: Broker, assignments: Sequence[Any], added: int) -> None:
    if len(assignments) != added:
        raise ProtocolError(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions would be added, but {len(assignments)} are assigned; assign each new one, or none",
        )
    for assignment in assignments:
        check_replicas(assignment.broker_ids, broker.node.node_id)


APIS: Final[Apis] = {19: (create_topics, 2, 7), 20: (delete_topics, 1, 6), 37: (create_partitions, 0, 3)}
