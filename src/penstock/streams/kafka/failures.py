"""Errors of librdkafka and the brokers as errors of the library, with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    GroupError,
    InvalidTopicError,
    NotAllowedError,
    PenstockError,
    StreamError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.model import is_topic_name

_CREATE: Final = "create it with create_topic, or with: penstock topics create"
_UNDELIVERED: Final[dict[int, str]] = {
    KafkaError._MSG_TIMED_OUT: "no acknowledgement came in time. It may be stored or not; check that the brokers "
    "run and can be reached, then send it again",
    KafkaError.NOT_ENOUGH_REPLICAS: "too few replicas are in sync for min.insync.replicas of the topic; start the "
    "missing brokers, then send it again",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "its leader has stored it, but too few replicas are in sync for "
    "min.insync.replicas of the topic; start the missing brokers, then send it again",
    KafkaError.REQUEST_TIMED_OUT: "the broker did not store it in time; see the broker's log, then send it again",
    KafkaError.MSG_SIZE_TOO_LARGE: "it is too large; raise max.message.bytes of the topic, or send less",
    KafkaError.RECORD_LIST_TOO_LARGE: "it is larger than a segment; raise segment.bytes of the topic, or send less",
    KafkaError.UNKNOWN_TOPIC_OR_PART: f"there is no such topic or partition; {_CREATE}",
    KafkaError._UNKNOWN_TOPIC: f"there is no such topic; {_CREATE}",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition; omit partition to have one chosen",
    KafkaError.TOPIC_EXCEPTION: "a topic cannot have this name; use letters, digits, dots, underscores and dashes",
    KafkaError.INVALID_RECORD: "the topic is compacted, so each of its records needs a key",
    KafkaError.INVALID_TIMESTAMP: "its timestamp is too far from the broker's clock; see "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    KafkaError.KAFKA_STORAGE_ERROR: "the broker's disk is full or failing; make room or repair it, then send it again",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this client may not write to the topic; ask for the permission",
    KafkaError._PURGE_QUEUE: "the connection was closed before it was sent",
    KafkaError._PURGE_INFLIGHT: "the connection was closed before it was acknowledged; it may be stored or not",
}

REFUSED_FOR_GOOD: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors that would happen again with the same record."""


def not_delivered(
    topic: str, error: KafkaError, given_up: str | None = None, why_silent: Callable[[str], str] | None = None
) -> DeliveryError:
    """Why a record was not delivered. `given_up` is the reason if the library purged it. `why_silent` is asked, with
    the topic, if no acknowledgement came: librdkafka does not report the errors that it retried until then."""
    code = error.code()
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART) and not is_topic_name(topic):
        code = KafkaError.TOPIC_EXCEPTION  # librdkafka reports either, depending on which of its timers fires first
    is_ours = given_up is not None and code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
    reason = given_up if is_ours else _UNDELIVERED.get(code, error.str())
    if code == KafkaError._MSG_TIMED_OUT and why_silent is not None and (why := why_silent(topic)):
        reason = f"no acknowledgement came in time, so it may be stored or not: {why}"
    fatal = ". This connection cannot send any more: connect again" if error.fatal() else ""
    return DeliveryError(
        f"a record for topic {topic!r} was not delivered: {reason}{fatal}",
        retriable=error.code() not in REFUSED_FOR_GOOD,
    )


def not_taken(topic: str, error: KafkaException) -> DeliveryError:
    """Why librdkafka did not accept a record."""
    reason = reason_of(error)
    return not_delivered(topic, reason) if reason is not None else DeliveryError(str(error))


def reason_of(error: BaseException) -> KafkaError | None:
    reason = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return reason if isinstance(reason, KafkaError) else None


def is_missing(error: BaseException) -> bool:
    """Whether the error means that a topic or partition does not exist."""
    reason = reason_of(error)
    return reason is not None and _REFUSED.get(reason.code(), (StreamError, ""))[0] is UnknownTopicError


def is_passing(error: BaseException) -> bool:
    """Whether a retry may help: the broker is unavailable, or not ready yet."""
    reason = reason_of(error)
    return reason is not None and (reason.retriable() or reason.code() in _PASSING) and not is_missing(error)


def has_moved(error: BaseException) -> bool:
    """Whether the error means that another broker leads the partition by now, or is about to."""
    reason = reason_of(error)
    return reason is not None and reason.code() in _MOVED


def is_unreachable(error: BaseException) -> bool:
    """Whether the error means that no broker answers."""
    reason = reason_of(error)
    return isinstance(error, TimeoutError) or (reason is not None and reason.code() in _UNREACHABLE)


def refused(what: str, error: BaseException) -> PenstockError:
    """The error for a request that failed. `what` starts the message, such as "topic 'x' could not be created"."""
    reason = reason_of(error)
    if is_unreachable(error):
        return BrokerUnavailableError(f"{what}: the broker does not answer; check that it runs and can be reached")
    if reason is None:
        return StreamError(f"{what}: {error}")
    kind, advice = _REFUSED.get(reason.code(), (StreamError, ""))
    return kind(f"{what}: {advice or _without_prefix(reason.str())}")


def _without_prefix(text: str) -> str:
    return text.removeprefix("Broker: ").removeprefix("Local: ")


_DESTROY_BROKER: Final = -137
"""What librdkafka (2.10 and newer) answers to requests that wait for a broker which has left the cluster, as far as the
others know. Older versions of confluent-kafka have no name for it."""
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._DESTROY,
        _DESTROY_BROKER,
    }
)
_MOVED: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,  # also of a new partition that its leader does not know yet
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # of a new leader that does not know yet what its followers have
    }
)
_PASSING: Final = frozenset(
    {
        *_UNREACHABLE,
        *_MOVED,
        KafkaError._NOENT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_REFUSED: Final[dict[int, tuple[type[PenstockError], str]]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: (
        UnknownTopicError,
        "there is no such topic or partition; see what there is with: penstock topics",
    ),
    KafkaError._UNKNOWN_PARTITION: (UnknownTopicError, "the topic has no such partition"),
    KafkaError._UNKNOWN_TOPIC: (UnknownTopicError, "there is no such topic; see what there is with: penstock topics"),
    KafkaError.TOPIC_ALREADY_EXISTS: (TopicExistsError, "it exists already; choose another name, or alter it"),
    KafkaError.TOPIC_EXCEPTION: (
        InvalidTopicError,
        "use 1 to 249 letters, digits, dots, underscores and dashes, not '.' or '..', "
        "and no name that differs from another topic's only in dots and underscores",
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (NotAllowedError, ""),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (NotAllowedError, ""),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (NotAllowedError, ""),
    KafkaError.INVALID_CONFIG: (ConfigError, ""),
    KafkaError.INVALID_PARTITIONS: (ConfigError, ""),
    KafkaError.INVALID_REPLICATION_FACTOR: (ConfigError, ""),
    KafkaError.INVALID_REPLICA_ASSIGNMENT: (ConfigError, ""),
    KafkaError._INVALID_ARG: (ConfigError, ""),
    KafkaError.GROUP_ID_NOT_FOUND: (GroupError, "there is no such group; see what there is with: penstock groups"),
    KafkaError.NON_EMPTY_GROUP: (GroupError, "it has members; stop them first"),
    KafkaError.UNKNOWN_MEMBER_ID: (GroupError, "it has members; stop them first"),
    KafkaError.INVALID_GROUP_ID: (GroupError, "a group needs a name"),
    KafkaError.TOPIC_DELETION_DISABLED: (StreamError, "the broker runs with delete.topic.enable=false"),
}
