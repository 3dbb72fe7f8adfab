"""Checks of topics in requests: whether they exist, their names, and the assignment of their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.internal_topics import INTERNAL_TOPICS
from penstock.errors import InvalidTopicError, UnknownTopicError
from penstock.log.store import Topic, TopicStore, check_topic_name

RESERVED_TOPICS: Final = INTERNAL_TOPICS | {"__cluster_metadata"}
"""Topics that only the broker may create; the last one is Kafka's, and unused here."""


def existing_topic(topics: TopicStore, name: str) -> Topic:
    topic = topics.get(name)
    if topic is None:
        check_topic_name(name)
        raise UnknownTopicError(f"there is no topic {name!r}; create it first, or look for a typo")
    return topic


def check_not_reserved(name: str) -> None:
    if name in RESERVED_TOPICS:
        raise ProtocolError(ErrorCode.invalid_request, f"{name} is the broker's own topic; choose another name")


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raise InvalidTopicError as Kafka does: in its metric names, dots and underscores collide."""
    if "." not in name and "_" not in name:
        return
    flat = name.replace(".", "_")
    for other in existing:
        if other != name and len(other) == len(name) and other.replace(".", "_") == flat:
            raise InvalidTopicError(
                f"topic {name!r} differs from {other!r} only in dots and underscores, which Kafka does not allow; "
                "choose another name"
            )


def check_replicas(replicas: Sequence[int], node_id: int) -> None:
    """Raise ProtocolError unless the replicas of a partition are exactly this node."""
    if list(replicas) == [node_id]:
        return
    if not replicas:
        problem = "names no broker"
    elif len(set(replicas)) < len(replicas):
        problem = f"names a broker twice: {', '.join(map(str, replicas))}"
    else:
        others = ", ".join(str(replica) for replica in replicas if replica != node_id)
        problem = f"names brokers that do not exist: {others}"
    raise ProtocolError(
        ErrorCode.invalid_replica_assignment,
        f"the assignment {problem}. penstock's log is one node: assign every partition to broker {node_id} alone, "
        "or omit the assignment.",
    )
