"""What librdkafka and the brokers complain about, in our words, with what to do."""

from __future__ import annotations

import re
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    GroupError,
    InvalidTopicError,
    PenstockError,
    StreamError,
    TopicExistsError,
    UnknownTopicError,
)

_TOPIC_NAME: Final = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}", re.ASCII)
_CREATE: Final = "create it with create_topic, or with: penstock topics create"
_UNDELIVERED: Final[dict[int, str]] = {
    KafkaError._MSG_TIMED_OUT: "no acknowledgement came in time. It may be stored or not; see that the broker runs "
    "and can be reached, then send it again",
    KafkaError.REQUEST_TIMED_OUT: "the broker did not store it in time; see the broker's log, then send it again",
    KafkaError.MSG_SIZE_TOO_LARGE: "it is too large; raise max.message.bytes of the topic, or send less",
    KafkaError.RECORD_LIST_TOO_LARGE: "it is larger than a segment; raise segment.bytes of the topic, or send less",
    KafkaError.UNKNOWN_TOPIC_OR_PART: f"there is no such topic or partition; {_CREATE}",
    KafkaError._UNKNOWN_TOPIC: f"there is no such topic; {_CREATE}",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition; leave partition away to have one chosen",
    KafkaError.TOPIC_EXCEPTION: "a topic cannot have this name; use letters, digits, dots, underscores and dashes",
    KafkaError.INVALID_RECORD: "the topic is compacted, so each of its records needs a key",
    KafkaError.INVALID_TIMESTAMP: "its timestamp is too far from the broker's clock; see "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    KafkaError.KAFKA_STORAGE_ERROR: "the broker's disk is full or failing; make room or repair it, then send it again",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this client may not write to the topic; ask for the right to",
    KafkaError._PURGE_QUEUE: "the connection was closed before it was sent",
    KafkaError._PURGE_INFLIGHT: "the connection was closed before it was acknowledged; it may be stored or not",
}


def not_delivered(topic: str, error: KafkaError, given_up: str | None = None) -> DeliveryError:
    """Why a record will not be delivered; `given_up` is why we let go of it ourselves, if we did."""
    code = error.code()
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART) and not _TOPIC_NAME.fullmatch(topic):
        code = KafkaError.TOPIC_EXCEPTION  # librdkafka says this or that, depending on which of its timers was first
    is_ours = given_up is not None and code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
    reason = given_up if is_ours else _UNDELIVERED.get(code, error.str())
    fatal = ". This connection can send no more: connect again" if error.fatal() else ""
    return DeliveryError(f"a record for topic {topic!r} was not delivered: {reason}{fatal}")


def reason_of(error: BaseException) -> KafkaError | None:
    """The error inside confluent-kafka's exception."""
    reason = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return reason if isinstance(reason, KafkaError) else None


def is_missing(error: BaseException) -> bool:
    """Whether it says that a topic or a partition is not there."""
    reason = reason_of(error)
    return reason is not None and _REFUSED.get(reason.code(), (StreamError, ""))[0] is UnknownTopicError


def is_passing(error: BaseException) -> bool:
    """Whether asking again may help: the broker is away, or not ready for this yet."""
    reason = reason_of(error)
    return reason is not None and (reason.retriable() or reason.code() in _PASSING) and not is_missing(error)


def is_unreachable(error: BaseException) -> bool:
    """Whether it says that nobody answers."""
    reason = reason_of(error)
    return isinstance(error, TimeoutError) or (reason is not None and reason.code() in _UNREACHABLE)


def refused(what: str, error: BaseException) -> PenstockError:
    """A request that was refused, or had no answer. `what` could not be done: "topic 'x' could not be created"."""
    reason = reason_of(error)
    if is_unreachable(error):
        return BrokerUnavailableError(f"{what}: the broker does not answer; see that it runs and can be reached")
    if reason is None:
        return StreamError(f"{what}: {error}")
    kind, advice = _REFUSED.get(reason.code(), (StreamError, ""))
    return kind(f"{what}: {advice or _without_prefix(reason.str())}")


def _without_prefix(text: str) -> str:
    return text.removeprefix("Broker: ").removeprefix("Local: ")


_UNREACHABLE: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._DESTROY,
    }
)
_PASSING: Final = frozenset({*_UNREACHABLE, KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE})
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
    KafkaError.INVALID_CONFIG: (ConfigError, ""),
    KafkaError.INVALID_PARTITIONS: (ConfigError, ""),
    KafkaError.INVALID_REPLICATION_FACTOR: (ConfigError, ""),
    KafkaError._INVALID_ARG: (ConfigError, ""),
    KafkaError.GROUP_ID_NOT_FOUND: (GroupError, "there is no such group; see what there is with: penstock groups"),
    KafkaError.NON_EMPTY_GROUP: (GroupError, "it has members; stop them first"),
    KafkaError.UNKNOWN_MEMBER_ID: (GroupError, "it has members; stop them first"),
    KafkaError.INVALID_GROUP_ID: (GroupError, "a group needs a name"),
    KafkaError.TOPIC_DELETION_DISABLED: (StreamError, "the broker runs with delete.topic.enable=false"),
}
