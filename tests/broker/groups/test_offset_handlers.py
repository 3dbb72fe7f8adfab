"""The handlers of requests about offsets, in every version, from bytes to bytes."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.errors import StorageError
from tests.broker.groups.doubles import in_a_loop
from tests.broker.groups.wire import (
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    TOPIC_IDS,
    TXN_OFFSET_COMMIT,
    BrokerDouble,
    every_version,
    topics_of,
)


def commit_fields(version: int, **more: Any) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": index,
            "committed_offset": 10 + index,
            "committed_leader_epoch": 2,
            "committed_metadata": "m",
        }
        for index in (0, 7)
    ]
    if version < 6:
        for partition in partitions:
            del partition["committed_leader_epoch"]
    rows = ("t", partitions), ("missing", partitions[:1])
    return {"group_id": "g", "member_id": "", "topics": topics_of(version, 10, *rows), **more}


@every_version(OFFSET_COMMIT)
@in_a_loop
async def test_offsets_are_committed(version: int) -> None:
    broker = BrokerDouble()
    answer = await broker.ask(OFFSET_COMMIT, version, commit_fields(version))
    known, missing = answer.topics
    assert [(each.partition_index, each.error_code) for each in known.partitions] == [
        (0, ErrorCode.none),
        (7, ErrorCode.unknown_topic_or_partition),
    ]
    assert [each.error_code for each in missing.partitions] == [
        ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    ]
    kept = broker.groups.offsets("g")["t", 0]
    assert (kept.offset, kept.leader_epoch, kept.metadata) == (10, 2 if version >= 6 else -1, "m")
    assert kept.expires_at_ms is None


@pytest.mark.parametrize("version", range(2, 5))
@in_a_loop
async def test_an_old_client_sets_the_retention_of_its_offsets(version: int) -> None:
    broker = BrokerDouble()
    await broker.ask(OFFSET_COMMIT, version, commit_fields(version, retention_time=timedelta(minutes=5)))
    kept = broker.groups.offsets("g")["t", 0]
    assert kept.expires_at_ms == kept.committed_at_ms + 300_000


@every_version(OFFSET_COMMIT)
@in_a_loop
async def test_a_commit_to_a_group_that_is_gone_is_refused_for_every_partition(version: int) -> None:
    broker = BrokerDouble()
    fields = commit_fields(version, generation_id_or_member_epoch=3, member_id="m")
    answer = await broker.ask(OFFSET_COMMIT, version, fields)
    refusal = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    assert [each.error_code for each in answer.topics[0].partitions] == [refusal, ErrorCode.unknown_topic_or_partition]


@in_a_loop
async def test_a_commit_of_nothing_is_answered_with_nothing() -> None:
    assert (await BrokerDouble().ask(OFFSET_COMMIT, 9, {"group_id": "g", "member_id": "", "topics": []})).topics == ()


@in_a_loop
async def test_a_commit_that_cannot_be_stored_says_so() -> None:
    broker = BrokerDouble()
    broker.world.topic.refuses = StorageError("the disk is full")
    answer = await broker.ask(OFFSET_COMMIT, 9, commit_fields(9))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.not_coordinator


def fetch_fields(version: int, topics: list[str] | None, group: str = "g", **more: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] | None = None
    if topics is not None:
        rows = [
            {"topic_id": TOPIC_IDS.get(name, uuid.UUID(int=99)), "partition_indexes": [0, 1]}
            if version >= 10
            else {"name": name, "partition_indexes": [0, 1]}
            for name in topics
        ]
    asked = {"group_id": group, "topics": rows}
    return {"groups": [asked], **more} if version >= 8 else {**asked, **more}


def fetched(answer: Any, version: int) -> list[list[tuple[int, int, ErrorCode]]]:
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    return [
        [(each.partition_index, each.committed_offset, each.error_code) for each in topic.partitions]
        for topic in topics
    ]


@every_version(OFFSET_FETCH)
@in_a_loop
async def test_offsets_are_fetched(version: int) -> None:
    broker = BrokerDouble()
    await broker.world.commit("g", 42)
    answer = await broker.ask(OFFSET_FETCH, version, fetch_fields(version, ["t", "missing"]))
    unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.none
    assert fetched(answer, version) == [
        [(0, 42, ErrorCode.none), (1, -1, ErrorCode.none)],
        [(0, -1, unknown), (1, -1, unknown)],
    ]
    assert version < 8 or answer.groups[0].group_id == "g"


@pytest.mark.parametrize("version", range(2, 11))
@in_a_loop
async def test_all_offsets_are_fetched(version: int) -> None:
    broker = BrokerDouble()
    await broker.world.commit("g", 42)
    await broker.world.commit("g", 43, topic="u")
    await broker.world.commit("g", 44, partition=2, topic="u")
    answer = await broker.ask(OFFSET_FETCH, version, fetch_fields(version, None))
    assert fetched(answer, version) == [[(0, 42, ErrorCode.none)], [(0, 43, ErrorCode.none), (2, 44, ErrorCode.none)]]
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    names = [each.topic_id for each in topics] if version >= 10 else [each.name for each in topics]
    assert names == (list(TOPIC_IDS.values()) if version >= 10 else ["t", "u"])


@pytest.mark.parametrize("version", range(7, 11))
@in_a_loop
async def test_pending_offsets_are_told_to_those_who_require_stable_ones(version: int) -> None:
    broker = BrokerDouble()
    await broker.ask(TXN_OFFSET_COMMIT, 3, txn_fields(3))
    stable = await broker.ask(OFFSET_FETCH, version, fetch_fields(version, ["t"], require_stable=True))
    assert fetched(stable, version)[0][0] == (0, -1, ErrorCode.unstable_offset_commit)
    any_ = await broker.ask(OFFSET_FETCH, version, fetch_fields(version, ["t"], require_stable=False))
    assert fetched(any_, version)[0][0] == (0, -1, ErrorCode.none)


@in_a_loop
async def test_several_groups_are_fetched_at_once() -> None:
    broker = BrokerDouble()
    await broker.world.commit("g", 1)
    await broker.world.commit("h", 2)
    asked = [{"group_id": name, "topics": [{"name": "t", "partition_indexes": [0]}]} for name in ("g", "h", "none")]
    answer = await broker.ask(OFFSET_FETCH, 8, {"groups": asked})
    assert [(row.group_id, row.topics[0].partitions[0].committed_offset) for row in answer.groups] == [
        ("g", 1),
        ("h", 2),
        ("none", -1),
    ]


@every_version(OFFSET_FETCH)
@in_a_loop
async def test_a_closed_coordinator_says_so_in_every_version(version: int) -> None:
    broker = BrokerDouble()
    await broker.groups.close()
    answer = await broker.ask(OFFSET_FETCH, version, fetch_fields(version, ["t"]))
    if version == 1:
        assert {code for _, _, code in fetched(answer, 1)[0]} == {ErrorCode.coordinator_not_available}
    else:
        row = answer.groups[0] if version >= 8 else answer
        assert row.error_code is ErrorCode.coordinator_not_available


def txn_fields(version: int, **more: Any) -> dict[str, Any]:
    rows = [{"partition_index": index, "committed_offset": 10 + index, "committed_metadata": "m"} for index in (0, 7)]
    topics = [{"name": "t", "partitions": rows}, {"name": "missing", "partitions": rows[:1]}]
    return {"transactional_id": "x", "group_id": "g", "producer_id": 5, "producer_epoch": 1, "topics": topics, **more}


@every_version(TXN_OFFSET_COMMIT)
@in_a_loop
async def test_offsets_are_committed_in_a_transaction(version: int) -> None:
    broker = BrokerDouble()
    answer = await broker.ask(TXN_OFFSET_COMMIT, version, txn_fields(version))
    assert [[each.error_code for each in topic.partitions] for topic in answer.topics] == [
        [ErrorCode.none, ErrorCode.unknown_topic_or_partition],
        [ErrorCode.unknown_topic_or_partition],
    ]
    assert broker.world.committed("g") is None
    broker.world.end_transaction(5, True, "g")
    assert broker.world.committed("g") == 10


@every_version(TXN_OFFSET_COMMIT)
@pytest.mark.parametrize(
    ("refusal", "before_four", "from_four"),
    [
        (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable),
        (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_epoch),
        (
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.invalid_producer_id_mapping,
        ),
    ],
)
@in_a_loop
async def test_a_commit_outside_of_a_transaction_is_refused_in_words_that_the_producer_knows(
    version: int, refusal: ErrorCode, before_four: ErrorCode, from_four: ErrorCode
) -> None:
    broker = BrokerDouble()
    broker.world.transactions[5] = refusal
    answer = await broker.ask(TXN_OFFSET_COMMIT, version, txn_fields(version))
    assert answer.topics[0].partitions[0].error_code is (from_four if version >= 4 else before_four)


@pytest.mark.parametrize("version", range(3, 6))
@in_a_loop
async def test_a_transaction_of_a_former_member_is_refused(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member()
    fields = txn_fields(version, generation_id=7, member_id=joined.member_id)
    answer = await broker.ask(TXN_OFFSET_COMMIT, version, fields)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.illegal_generation


@in_a_loop
async def test_offsets_are_deleted() -> None:
    broker = BrokerDouble()
    await broker.member()
    for topic in ("t", "u"):
        (member,) = broker.groups.describe("g").members.values()  # type: ignore[union-attr]
        await broker.world.commit("g", 1, topic=topic, member_id=member.member_id, generation=1)
    rows = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u", "missing")]
    answer = await broker.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": rows})
    assert answer.error_code is ErrorCode.none
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    nobody = await broker.ask(OFFSET_DELETE, 0, {"group_id": "none", "topics": rows})
    assert nobody.error_code is ErrorCode.group_id_not_found
