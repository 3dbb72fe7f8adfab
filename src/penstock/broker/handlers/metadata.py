"""Topics and their leaders: Metadata, DescribeCluster and DescribeTopicPartitions.

Every client asks for Metadata first and again every few minutes, and the response can be long, so the part of each
topic is encoded once and cached until the topic changes.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from penstock.broker.errors import code_of
from penstock.broker.handlers.topic_checks import RESERVED_TOPICS, check_no_collision
from penstock.broker.internal_topics import INTERNAL_TOPICS
from penstock.broker.request import Apis, Fields, Request, Steps
from penstock.broker.wire.encoder import Write, encoder
from penstock.errors import PenstockError
from penstock.log.batches.scan import LEADER_EPOCH
from penstock.log.store import Topic, TopicStore, check_topic_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

METADATA: Final = 3
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: every client may do everything."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED_FOR: Final = -(2**31)

MAX_CREATED_PER_REQUEST: Final = 100
"""How many topics one Metadata request creates. The client asks again for the rest, as it does for unknown topics."""

IDS_SINCE_VERSION: Final = 12
BROKERS_ENDPOINT: Final = 1
CONTROLLERS_ENDPOINT: Final = 2


def metadata(broker: Broker, request: Request) -> Steps[Fields]:
    operations = TOPIC_OPERATIONS if request.get("include_topic_authorized_operations", False) else NOT_ASKED_FOR
    encoded = _encoded_topics(broker.topics, request.version, operations, broker.node.node_id)
    asked = request.body.topics
    topics: list[Fields | bytes] = []
    # Before version 1 there was no null, and an empty list meant all topics.
    wants_all = asked is None or (request.version == 0 and not asked)
    for found in _all(broker.topics) if wants_all else _find(broker, request, asked):
        topics.append(encoded.get(found) if isinstance(found, Topic) else {**found, **_nothing(operations)})
        yield
    cluster_asked = request.get("include_cluster_authorized_operations", False)
    return {
        "brokers": [_node(broker, "node_id")],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node.node_id,
        "topics": topics,
        "error_code": ErrorCode.none,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if cluster_asked else NOT_ASKED_FOR,
    }


def _all(topics: TopicStore) -> Iterator[Topic]:
    for name in list(topics.names()):
        topic = topics.get(name)
        if topic is not None:
            yield topic


def _find(broker: Broker, request: Request, asked: Sequence[Any]) -> Iterator[Topic | Fields]:
    """Each topic that is asked for, once; what is wrong with it if it cannot be had."""
    may_create = broker.settings.auto_create_topics and request.get("allow_auto_topic_creation", True)
    left = MAX_CREATED_PER_REQUEST if may_create else 0
    for name, topic_id in dict.fromkeys((each.name, getattr(each, "topic_id", None)) for each in asked):
        if topic_id is not None and request.version >= IDS_SINCE_VERSION:
            yield broker.topics.by_id(topic_id) or _missing(ErrorCode.unknown_topic_id, None, topic_id)
        elif name is None or topic_id is not None:
            yield _missing(ErrorCode.invalid_request, "", topic_id)
        else:
            topic = broker.topics.get(name)
            if topic is None and left and name not in RESERVED_TOPICS:
                left -= 1
                yield _create(broker, name)
            else:
                yield topic or _unknown(name)


def _create(broker: Broker, name: str) -> Topic | Fields:
    try:
        check_topic_name(name)
        check_no_collision(name, broker.topics.names())
        if broker.has_old_offsets(name):
            broker.drop_old_offsets_soon(name)
            return _missing(ErrorCode.leader_not_available, name, None)
        return broker.topics.create(name, broker.settings.default_partitions, {})
    except PenstockError as error:
        return _missing(code_of(error), name, None)


def _unknown(name: str) -> Fields:
    try:
        check_topic_name(name)
    except PenstockError as error:
        return _missing(code_of(error), name, None)
    return _missing(ErrorCode.unknown_topic_or_partition, name, None)


def _missing(code: ErrorCode, name: str | None, topic_id: uuid.UUID | None) -> Fields:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": name in INTERNAL_TOPICS}


def _nothing(operations: int) -> Fields:
    return {"partitions": [], "topic_authorized_operations": operations}


class EncodedTopics:
    def __init__(self, version: int, operations: int, node_id: int) -> None:
        module = load_payload_module(METADATA, version, EntityType.response)
        self._write: Write = encoder(module.MetadataResponseTopic)
        self._operations = operations
        self._node_id = node_id
        self._known: dict[uuid.UUID, tuple[int, bytes]] = {}
        """By topic id: for how many partitions it was encoded, which is all about a topic that can change here."""

    def get(self, topic: Topic) -> bytes:
        count = len(topic.partitions)
        known_count, known = self._known.get(topic.id, (0, b""))
        if known_count != count:
            out = bytearray()
            self._write(out, self.fields(topic))
            known = bytes(out)
            self._known[topic.id] = count, known
        return known

    def fields(self, topic: Topic) -> Fields:
        partitions: list[Fields] = [_partition(number, self._node_id) for number in range(len(topic.partitions))]
        return _described(topic, self._operations, partitions)

    def forget_deleted(self, topics: TopicStore) -> None:
        self._known = {topic_id: known for topic_id, known in self._known.items() if topics.by_id(topic_id)}


class _Answers:
    def __init__(self) -> None:
        self.topics_version = -1
        self.by_layout: dict[tuple[int, int], EncodedTopics] = {}


_answers: weakref.WeakKeyDictionary[TopicStore, _Answers] = weakref.WeakKeyDictionary()


def _encoded_topics(topics: TopicStore, version: int, operations: int, node_id: int) -> EncodedTopics:
    answers = _answers.setdefault(topics, _Answers())
    if answers.topics_version != topics.version:
        answers.topics_version = topics.version
        for encoded in answers.by_layout.values():
            encoded.forget_deleted(topics)
    layout = (version, operations)
    if layout not in answers.by_layout:
        answers.by_layout[layout] = EncodedTopics(version, operations, node_id)
    return answers.by_layout[layout]


def _described(topic: Topic, operations: int, partitions: list[Fields]) -> Fields:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }


def _partition(number: int, node_id: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "partition_index": number,
        "leader_id": node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id],
        "offline_replicas": [],
    }


def _node(broker: Broker, id_field: str) -> Fields:
    return {id_field: broker.node.node_id, "host": broker.node.host, "port": broker.node.port, "rack": None}


def describe_cluster(broker: Broker, request: Request) -> Fields:
    endpoint = request.get("endpoint_type", BROKERS_ENDPOINT)
    if endpoint != BROKERS_ENDPOINT:
        if endpoint == CONTROLLERS_ENDPOINT:
            code = ErrorCode.mismatched_endpoint_type
            message = "this address serves brokers; there are no controllers, because the log is one node"
        else:
            code, message = ErrorCode.unsupported_endpoint_type, f"endpoint type {endpoint} is unknown; use 1, brokers"
        return {"error_code": code, "error_message": message, "cluster_id": "", "brokers": []}
    asked = request.body.include_cluster_authorized_operations
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": BROKERS_ENDPOINT,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node.node_id,
        "brokers": [{**_node(broker, "broker_id"), "is_fenced": False}],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else NOT_ASKED_FOR,
    }


def describe_topic_partitions(broker: Broker, request: Request) -> Steps[Fields]:
    """Partitions of topics sorted by name, as many as fit, and where to continue."""
    body = request.body
    names = sorted({asked.name for asked in body.topics}) or sorted(broker.topics.names())
    cursor = body.cursor
    first_name, first_partition = (cursor.topic_name, cursor.partition_index) if cursor else ("", 0)
    if first_partition < 0 or (cursor and body.topics and first_name not in names):
        refused = [{**_missing(ErrorCode.invalid_request, name, None), **_nothing(NOT_ASKED_FOR)} for name in names]
        return {"topics": refused, "next_cursor": None}
    room = max(1, min(body.response_partition_limit, broker.settings.max_request_partitions))
    topics: list[Fields] = []
    for name in names:
        yield
        if name < first_name:
            continue
        if not room:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = broker.topics.get(name)
        if topic is None:
            topics.append({**_unknown(name), **_nothing(TOPIC_OPERATIONS)})
            continue
        first = min(first_partition, len(topic.partitions)) if name == first_name else 0
        count = min(len(topic.partitions) - first, room)
        partitions: list[Fields] = [
            {**_partition(number, broker.node.node_id), "eligible_leader_replicas": [], "last_known_elr": []}
            for number in range(first, first + count)
        ]
        topics.append(_described(topic, TOPIC_OPERATIONS, partitions))
        room -= count
        if first + count < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": first + count}}
    return {"topics": topics, "next_cursor": None}


APIS: Final[Apis] = {METADATA: (metadata, 0, 13), 60: (describe_cluster, 0, 2), 75: (describe_topic_partitions, 0, 0)}
