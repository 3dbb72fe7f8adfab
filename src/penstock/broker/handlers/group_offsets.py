"""The requests about the offsets of groups.

Versions: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0, TxnOffsetCommit 0-5. From version 10 on, OffsetCommit and
OffsetFetch name topics by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups import CommitRequest, FetchedOffset, OffsetToCommit, TopicPartition
from penstock.broker.request import Fields, Handler, Request

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_BY_ID: Final = 10
_FIRST_WITH_ABORTABLE: Final = 4
_NO_ID: Final = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class _NamedTopic:
    """A topic of a request with its name, which is None for an id that no topic has."""

    asked: Any
    name: str | None

    @property
    def identity(self) -> dict[str, Any]:
        """How the answer names it."""
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
    """Kafka never says PRODUCER_FENCED here, and TRANSACTION_ABORTABLE only to those who know it."""
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
    """Commit what exists, and answer for every partition that was asked for."""
    body = request.body
    topics = _named(broker, body.topics)
    offsets = tuple(
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", -1),
            partition.committed_metadata,
        )
        for topic in topics
        if topic.name is not None
        for partition in topic.asked.partitions
        if broker.topics.exists(topic.name, partition.partition_index)
    )
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
    return {"topics": [_per_partition(topic, answers) for topic in topics]}


def _per_partition(topic: _NamedTopic, answers: Mapping[TopicPartition, ErrorCode]) -> dict[str, Any]:
    missing = ErrorCode.unknown_topic_id if topic.name is None else ErrorCode.unknown_topic_or_partition
    return {
        **topic.identity,
        "partitions": [
            {
                "partition_index": partition.partition_index,
                "error_code": answers.get((topic.name or "", partition.partition_index), missing),
            }
            for partition in topic.asked.partitions
        ],
    }


async def offset_fetch(broker: Broker, request: Request) -> Fields:
    """From version 8 on several groups are asked for at once."""
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
            answers = [
                {
                    **topic.identity,
                    "partitions": [
                        _fetched(index, _found(found, topic.name, index)) for index in topic.asked.partition_indexes
                    ],
                }
                for topic in topics
            ]
    except ProtocolError as error:
        return _fetch_refused(asked, topics or [], error.code, version)
    return _with_group(asked, version, {"error_code": ErrorCode.none, "topics": answers})


def _with_group(asked: Any, version: int, answer: dict[str, Any]) -> dict[str, Any]:
    return {"group_id": asked.group_id, **answer} if version >= 8 else answer


def _fetch_refused(asked: Any, topics: list[_NamedTopic], code: ErrorCode, version: int) -> dict[str, Any]:
    """Version 1 has no place for the group's error, so every partition says it."""
    refused = FetchedOffset(error=code)
    answers = [
        {**topic.identity, "partitions": [_fetched(index, refused) for index in topic.asked.partition_indexes]}
        for topic in topics
    ]
    return _with_group(asked, version, {"error_code": code, "topics": answers if version < 2 else []})


def _found(found: Mapping[TopicPartition, FetchedOffset], name: str | None, index: int) -> FetchedOffset:
    return FetchedOffset(error=ErrorCode.unknown_topic_id) if name is None else found[name, index]


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
    existing = [
        (str(topic.name), partition.partition_index)
        for topic in topics
        for partition in topic.asked.partitions
        if broker.topics.exists(str(topic.name), partition.partition_index)
    ]
    try:
        answers = await broker.groups.delete_offsets(body.group_id, existing)
    except ProtocolError as error:
        return {"error_code": error.code, "topics": []}
    return {"error_code": ErrorCode.none, "topics": [_per_partition(topic, answers) for topic in topics]}


HANDLERS: Final[dict[int, Handler]] = {
    8: offset_commit,
    9: offset_fetch,
    28: txn_offset_commit,
    47: offset_delete,
}
VERSIONS: Final = {8: (2, 10), 9: (1, 10), 28: (0, 4), 47: (0, 0)}
