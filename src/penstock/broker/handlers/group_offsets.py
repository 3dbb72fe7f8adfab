"""Requests about the offsets of groups.

Versions: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0, TxnOffsetCommit 0-5. From version 10 on, OffsetCommit and
OffsetFetch identify topics by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import CommitRequest, FetchedOffset, OffsetToCommit
from penstock.broker.groups.offsets import TopicPartition
from penstock.broker.request import Apis, Fields, Request, Steps, run_in_slices

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_BY_ID: Final = 10
_FIRST_WITH_ABORTABLE: Final = 4
_NO_ID: Final = uuid.UUID(int=0)
_UNKNOWN_TOPIC: Final = FetchedOffset(error=ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True)
class _NamedTopic:
    """A topic of a request with its name; None for an unknown id."""

    asked: Any
    name: str | None

    @property
    def identity(self) -> dict[str, Any]:
        by_id = hasattr(self.asked, "topic_id")
        return {"topic_id": self.asked.topic_id} if by_id else {"name": self.asked.name}


def _named(broker: Broker, topics: Iterable[Any]) -> list[_NamedTopic]:
    return [
        _NamedTopic(
            topic,
            broker.topics.name_of(topic.topic_id or _NO_ID) if hasattr(topic, "topic_id") else str(topic.name),
        )
        for topic in topics
    ]


async def offset_commit(broker: Broker, request: Request) -> Fields:
    body = request.body
    retention: timedelta | None = request.get("retention_time")
    retention_ms = None if retention is None else retention // timedelta(milliseconds=1)
    return await _commit(
        broker,
        request,
        generation=body.generation_id_or_member_epoch,
        retention_ms=None if retention_ms == -1 else retention_ms,
        commit=broker.groups.commit,
    )


async def txn_offset_commit(broker: Broker, request: Request) -> Fields:
    body = request.body

    def commit(offsets: CommitRequest) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        return broker.groups.commit_in_transaction(
            body.producer_id, body.producer_epoch, offsets, transactional_id=body.transactional_id
        )

    answer = await _commit(
        broker, request, generation=request.get("generation_id", -1), retention_ms=None, commit=commit
    )
    return _in_codes_of(request.version, answer)


def _in_codes_of(version: int, answer: dict[str, Any]) -> Fields:
    """Kafka never sends PRODUCER_FENCED here, and TRANSACTION_ABORTABLE only to clients that know it."""
    for topic in answer["topics"]:
        for partition in topic["partitions"]:
            code = partition["error_code"]
            if code is ErrorCode.producer_fenced:
                partition["error_code"] = ErrorCode.invalid_producer_epoch
            elif code is ErrorCode.transaction_abortable and version < _FIRST_WITH_ABORTABLE:
                partition["error_code"] = ErrorCode.invalid_txn_state
    return answer


async def _commit(
    broker: Broker,
    request: Request,
    *,
    generation: int,
    retention_ms: int | None,
    commit: Callable[[CommitRequest], Awaitable[Mapping[TopicPartition, ErrorCode]]],
) -> dict[str, Any]:
    """Commit offsets of existing partitions, and answer for every requested partition."""
    body = request.body
    topics = _named(broker, body.topics)
    last = await run_in_slices(_existing_offsets(broker, topics))
    # Looked up again, with no await from here on: a topic may have been deleted between two slices.
    offsets = tuple(offset for offset in last.values() if broker.topics.exists(*offset.where))
    answers: Mapping[TopicPartition, ErrorCode] = {}
    if offsets:
        wanted = CommitRequest(
            group_id=body.group_id,
            offsets=offsets,
            member_id=request.get("member_id", ""),
            generation=generation,
            instance_id=request.get("group_instance_id"),
            retention_ms=retention_ms,
            knows_missing_groups=request.version >= 9,
        )
        try:
            answers = await commit(wanted)
        except ProtocolError as error:
            answers = {offset.where: error.code for offset in offsets}
    return {"topics": await run_in_slices(_per_partition(topics, answers))}


def _existing_offsets(broker: Broker, topics: Sequence[_NamedTopic]) -> Steps[dict[TopicPartition, OffsetToCommit]]:
    """The last offset for each existing partition, however often a request names it."""
    offsets: dict[TopicPartition, OffsetToCommit] = {}
    for topic in topics:
        for partition in topic.asked.partitions if topic.name is not None else ():
            yield
            where = str(topic.name), partition.partition_index
            if broker.topics.exists(*where):
                offsets[where] = OffsetToCommit(
                    *where,
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                )
    return offsets


def _per_partition(
    topics: Sequence[_NamedTopic], answers: Mapping[TopicPartition, ErrorCode]
) -> Steps[list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    for topic in topics:
        missing = ErrorCode.unknown_topic_id if topic.name is None else ErrorCode.unknown_topic_or_partition
        partitions: list[Fields] = []
        told.append({**topic.identity, "partitions": partitions})
        for partition in topic.asked.partitions:
            number = partition.partition_index
            partitions.append(
                {"partition_index": number, "error_code": answers.get((topic.name or "", number), missing)}
            )
            yield
    return told


async def offset_fetch(broker: Broker, request: Request) -> Fields:
    """From version 8 on, a request asks for several groups."""
    require_stable = request.get("require_stable", False)
    if request.version >= 8:
        groups = [await _fetch(broker, group, request.version, require_stable) for group in request.body.groups]
        return {"groups": groups}
    return await _fetch(broker, request.body, request.version, require_stable)


async def _fetch(broker: Broker, asked: Any, version: int, require_stable: bool) -> dict[str, Any]:
    topics = None if asked.topics is None else _named(broker, asked.topics)
    try:
        if topics is None:
            found = await broker.groups.fetch(asked.group_id, None, require_stable=require_stable)
            answers = _all_topics(broker, found, version)
        else:
            partitions = [
                (topic.name, index)
                for topic in topics
                if topic.name is not None
                for index in topic.asked.partition_indexes
            ]
            found = await broker.groups.fetch(asked.group_id, partitions, require_stable=require_stable)
            answers = await run_in_slices(_found_offsets(topics, found))
    except ProtocolError as error:
        return _fetch_refused(asked, topics or [], error.code, version)
    return _with_group(asked, version, {"error_code": ErrorCode.none, "topics": answers})


def _with_group(asked: Any, version: int, answer: dict[str, Any]) -> dict[str, Any]:
    return {"group_id": asked.group_id, **answer} if version >= 8 else answer


def _fetch_refused(asked: Any, topics: list[_NamedTopic], code: ErrorCode, version: int) -> dict[str, Any]:
    """Version 1 has no field for the group's error, so every partition has it."""
    refused = FetchedOffset(error=code)
    answers = [
        {**topic.identity, "partitions": [_fetched(index, refused) for index in topic.asked.partition_indexes]}
        for topic in topics
    ]
    return _with_group(asked, version, {"error_code": code, "topics": answers if version < 2 else []})


def _found_offsets(
    topics: Sequence[_NamedTopic], found: Mapping[TopicPartition, FetchedOffset]
) -> Steps[list[dict[str, Any]]]:
    answers: list[dict[str, Any]] = []
    for topic in topics:
        partitions: list[dict[str, Any]] = []
        answers.append({**topic.identity, "partitions": partitions})
        for index in topic.asked.partition_indexes:
            offset = _UNKNOWN_TOPIC if topic.name is None else found[topic.name, index]
            partitions.append(_fetched(index, offset))
            yield
    return answers


def _all_topics(broker: Broker, found: Mapping[TopicPartition, FetchedOffset], version: int) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (name, index), offset in found.items():
        by_topic.setdefault(name, []).append(_fetched(index, offset))
    if version < _BY_ID:
        return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    ids = {name: broker.topics.id_of(name) for name in by_topic}
    return [
        {"topic_id": ids[name], "partitions": partitions}
        for name, partitions in by_topic.items()
        if ids[name] is not None
    ]


def _fetched(index: int, offset: FetchedOffset) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": offset.error,
    }


async def offset_delete(broker: Broker, request: Request) -> Fields:
    body = request.body
    topics = _named(broker, body.topics)
    existing = list(
        dict.fromkeys(
            (str(topic.name), partition.partition_index)
            for topic in topics
            for partition in topic.asked.partitions
            if broker.topics.exists(str(topic.name), partition.partition_index)
        )
    )
    try:
        answers = await broker.groups.delete_offsets(body.group_id, existing)
    except ProtocolError as error:
        return {"error_code": error.code, "topics": []}
    return {"error_code": ErrorCode.none, "topics": await run_in_slices(_per_partition(topics, answers))}


APIS: Final[Apis] = {
    8: (offset_commit, 2, 10),
    9: (offset_fetch, 1, 10),
    28: (txn_offset_commit, 0, 4),
    47: (offset_delete, 0, 0),
}
