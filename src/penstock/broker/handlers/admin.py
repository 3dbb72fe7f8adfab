"""Making and removing topics: CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.handlers.assignment import check_replicas
from penstock.broker.handlers.naming import check_no_collision, check_not_reserved
from penstock.broker.request import Fields, Handler, Request
from penstock.errors import PenstockError, TopicExistsError, UnknownTopicError
from penstock.log.config import TopicConfig
from penstock.log.described import describe_topic
from penstock.log.store import Topic, check_topic_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""How many partitions one request may create. Kafka has the same limit."""

DEFAULT: Final = -1
"""What stands for "the broker's default" in numbers of partitions and replicas."""

_CONFIGS_SINCE_VERSION: Final = 5
_DELETION_DISABLED_SINCE_VERSION: Final = 3


async def create_topics(broker: Broker, request: Request) -> Fields:
    wanted = request.body.topics
    times = Counter(topic.name for topic in wanted)
    too_many = sum(_partitions_asked(topic) for topic in wanted) > MAX_PARTITIONS_PER_REQUEST
    results: dict[str, Fields] = {}
    for topic in wanted:
        if topic.name in results:
            continue
        try:
            _check_once(topic.name, times)
            if too_many:
                raise ProtocolError(
                    ErrorCode.policy_violation,
                    f"the request asks for more than {MAX_PARTITIONS_PER_REQUEST} partitions; "
                    "ask for fewer, or split it into several requests",
                )
            results[topic.name] = _create(broker, request, topic)
        except PenstockError as error:
            results[topic.name] = {
                "name": topic.name,
                "topic_id": None,
                "error_code": code_of(error),
                "error_message": str(error),
                "configs": [],
            }
        await asyncio.sleep(0)  # other clients get their turn between two topics
    return {"topics": list(results.values())}


def _partitions_asked(topic: Any) -> int:
    return len(topic.assignments) or max(topic.num_partitions, 1)


def _check_once(name: str, times: Counter[str]) -> None:
    if times[name] > 1:
        raise ProtocolError(
            ErrorCode.invalid_request, f"the request names topic {name!r} {times[name]} times; name it once"
        )


def _create(broker: Broker, request: Request, wanted: Any) -> Fields:
    """Create one topic, or only see whether it could be; PenstockError says why it cannot."""
    name = wanted.name
    check_topic_name(name)
    if broker.topics.get(name) is not None:
        raise TopicExistsError(f"topic {name!r} exists already; choose another name, or delete it first")
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
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
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
            f"topic {wanted.name!r} comes with an assignment of its partitions, which says how many there are; "
            "leave the numbers of partitions and replicas at -1, or leave the assignment out",
        )
    numbers = sorted(assignment.partition_index for assignment in wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise ProtocolError(
            ErrorCode.invalid_replica_assignment,
            f"topic {wanted.name!r} comes with an assignment of partitions {', '.join(map(str, numbers))}; "
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
                ErrorCode.invalid_config, f"{config.name} is null; give it a value, or leave it out for the default"
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
        for row in describe_topic(overrides, broker.settings.overrides)
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
        code, message = ErrorCode.none, None
        shown_name, shown_id = name, topic_id
        try:
            topic = _deletable(broker, request, name, topic_id, times)
            shown_name, shown_id = topic.name, topic.id
            broker.topics.delete(topic.name)
            # Also if the client goes away meanwhile: a new topic of that name must not be read from the old offsets.
            await asyncio.shield(broker.groups.forget_topic(topic.name))
        except PenstockError as error:
            code, message = code_of(error), str(error)
        results[name, topic_id] = {
            "name": shown_name,
            "topic_id": shown_id,
            "error_code": code,
            "error_message": message,
        }
        await asyncio.sleep(0)  # other clients get their turn between two topics
    return {"responses": list(results.values())}


def _topic_names(broker: Broker, named: Iterable[tuple[str | None, uuid.UUID | None]]) -> Iterable[str]:
    """The names of the topics that are meant, by name or id, as often as they are."""
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
        code, message = ErrorCode.none, None
        try:
            _check_once(wanted.name, times)
            room -= _check_increase(broker, wanted, room)
            if not request.body.validate_only:
                broker.topics.add_partitions(wanted.name, wanted.count)
        except PenstockError as error:
            code, message = code_of(error), str(error)
        results[wanted.name] = {"name": wanted.name, "error_code": code, "error_message": message}
        await asyncio.sleep(0)  # other clients get their turn between two topics
    return {"results": list(results.values())}


def _check_increase(broker: Broker, wanted: Any, room: int) -> int:
    """How many partitions would be added; PenstockError if they cannot be."""
    topic = broker.topics.get(wanted.name)
    if topic is None:
        raise UnknownTopicError(f"there is no topic {wanted.name!r}; create it with as many partitions as you want")
    if topic.internal:
        raise ProtocolError(
            ErrorCode.invalid_request,
            f"{topic.name} is the broker's own topic: with more partitions, what is stored could not be found again",
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


HANDLERS: Final[dict[int, Handler]] = {19: create_topics, 20: delete_topics, 37: create_partitions}
VERSIONS: Final = {19: (2, 7), 20: (1, 6), 37: (0, 3)}
