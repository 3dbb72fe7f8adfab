"""Committing, reading and deleting offsets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import CommitRequest, FetchedOffset, MemberProtocol, OffsetToCommit
from penstock.errors import InvalidProducerEpochError, StorageError
from tests.broker.groups.doubles import SESSION_MS, START_MS, World, commit_request, in_a_loop, settle


async def expect_refusal(world: World, code: ErrorCode, request: CommitRequest) -> None:
    with pytest.raises(ProtocolError) as refused:
        await world.groups.commit(request)
    assert refused.value.code is code


@in_a_loop
async def test_a_member_commits_and_reads_back() -> None:
    world = World()
    joined = await world.member()
    wanted = CommitRequest(
        group_id="g",
        offsets=(OffsetToCommit("t", 0, 42, 3, "note"), OffsetToCommit("t", 1, 7)),
        member_id=joined.member_id,
        generation=1,
    )
    assert await world.groups.commit(wanted) == {("t", 0): ErrorCode.none, ("t", 1): ErrorCode.none}
    assert await world.groups.fetch("g", [("t", 0), ("t", 1), ("t", 2)]) == {
        ("t", 0): FetchedOffset(42, 3, "note"),
        ("t", 1): FetchedOffset(7, -1, ""),
        ("t", 2): FetchedOffset(-1, -1, ""),
    }


@in_a_loop
async def test_all_offsets_of_a_group_are_read_at_once() -> None:
    world = World()
    await world.commit("g", 1, partition=0)
    await world.commit("g", 2, partition=5, topic="u")
    await world.commit("other", 3)
    assert await world.groups.fetch("g", None) == {("t", 0): FetchedOffset(1), ("u", 5): FetchedOffset(2)}
    assert await world.groups.fetch("nobody", None) == {}
    assert await world.groups.fetch("nobody", [("t", 0)]) == {("t", 0): FetchedOffset()}


@in_a_loop
async def test_a_commit_says_when_it_was_made() -> None:
    world = World()
    await world.clock.advance(1_234)
    await world.commit("g", 1)
    assert world.groups.offsets("g")["t", 0].committed_at_ms == START_MS + 1_234


@in_a_loop
async def test_a_consumer_without_a_group_may_commit_to_an_empty_group() -> None:
    world = World()
    assert await world.commit("g", 1) is ErrorCode.none
    assert world.state() == "Empty"
    assert await world.commit("g", 2) is ErrorCode.none
    assert await world.commit("", 3) is ErrorCode.none, "the empty name is a group like any other here"


@in_a_loop
async def test_a_consumer_without_a_group_may_not_commit_where_members_are() -> None:
    world = World()
    await world.member()
    await expect_refusal(world, ErrorCode.unknown_member_id, commit_request("g", 1))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"member_id": "ghost", "generation": 1}, ErrorCode.unknown_member_id),
        ({"member_id": "ghost", "generation": -1}, ErrorCode.unknown_member_id),
        ({"generation": 1}, ErrorCode.unknown_member_id),
        ({"generation": 2, "member_id": "me"}, ErrorCode.illegal_generation),
        ({"generation": -1, "member_id": "me"}, ErrorCode.illegal_generation),
        ({"generation": 1, "member_id": "me", "instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
)
@in_a_loop
async def test_who_may_not_commit(options: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    joined = await world.member()
    member_id = joined.member_id if options.get("member_id") == "me" else options.get("member_id", "")
    await expect_refusal(world, code, commit_request("g", 1, **{**options, "member_id": member_id}))
    assert world.committed("g") is None


@pytest.mark.parametrize(
    ("knows", "code"), [(True, ErrorCode.group_id_not_found), (False, ErrorCode.illegal_generation)]
)
@in_a_loop
async def test_a_member_of_a_group_that_is_gone_is_told_so_as_its_version_can_say_it(
    knows: bool, code: ErrorCode
) -> None:
    request = commit_request("g", 1, member_id="m", generation=3, knows_missing_groups=knows)
    await expect_refusal(World(), code, request)


@in_a_loop
async def test_commits_are_taken_while_the_members_are_called_together_but_not_before_they_are_assigned() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    mine: dict[str, Any] = {"member_id": first.member_id, "generation": 1}
    assert await world.commit("g", 5, **mine) is ErrorCode.none
    leader = await world.join(member_id=first.member_id)
    await second
    assert world.state() == "CompletingRebalance"
    await expect_refusal(
        world,
        ErrorCode.rebalance_in_progress,
        commit_request("g", 6, member_id=leader.member_id, generation=leader.generation),
    )
    assert world.committed("g") == 5


@in_a_loop
async def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    joined = await world.member()
    for offset in range(5):
        await world.clock.advance(SESSION_MS - 1)
        await world.commit("g", offset, member_id=joined.member_id, generation=1)
    assert world.state() == "Stable"


@in_a_loop
async def test_metadata_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    world = World()
    wanted = CommitRequest(
        group_id="g",
        offsets=(OffsetToCommit("t", 0, 1, metadata="x" * 4_097), OffsetToCommit("t", 1, 2, metadata="x" * 4_096)),
    )
    assert await world.groups.commit(wanted) == {
        ("t", 0): ErrorCode.offset_metadata_too_large,
        ("t", 1): ErrorCode.none,
    }
    assert (world.committed("g", 0), world.committed("g", 1)) == (None, 2)


@in_a_loop
async def test_a_commit_of_nothing_but_refusals_writes_nothing() -> None:
    world = World()
    await world.groups.commit(commit_request("g", 1, metadata="x" * 5_000))
    assert world.topic.batches == []
    assert world.state() is None
    assert await world.groups.commit(CommitRequest(group_id="g", offsets=())) == {}


@in_a_loop
async def test_the_longest_metadata_of_the_widest_characters_can_be_stored() -> None:
    world = World()
    assert await world.commit("g", 1, metadata="\U0001f600" * 4_096) is ErrorCode.none
    world.restart()
    assert world.groups.offsets("g")["t", 0].metadata == "\U0001f600" * 4_096


@in_a_loop
async def test_a_commit_counts_only_once_it_is_durable() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.hold()
    committing = asyncio.ensure_future(world.commit("g", 2))
    await settle()
    assert not committing.done()
    assert world.committed("g") == 1
    await world.topic.release()
    assert await committing is ErrorCode.none
    assert world.committed("g") == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("the disk is full"), ErrorCode.not_coordinator),
        (InvalidProducerEpochError("an older instance"), ErrorCode.invalid_producer_epoch),
        (ProtocolError(ErrorCode.message_too_large), ErrorCode.unknown_server_error),
        (RuntimeError("a defect"), ErrorCode.unknown_server_error),
    ],
)
@in_a_loop
async def test_a_commit_that_cannot_be_stored_does_not_count(error: Exception, code: ErrorCode) -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.refuses = error
    assert await world.commit("g", 2) is code
    assert world.committed("g") == 1
    world.topic.refuses = None
    assert await world.commit("g", 3) is ErrorCode.none
    assert world.committed("g") == 3


@in_a_loop
async def test_a_commit_whose_client_goes_away_still_counts_once_it_is_written() -> None:
    world = World()
    world.topic.hold()
    committing = asyncio.ensure_future(world.commit("g", 2))
    await settle()
    committing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await committing
    await world.topic.release()
    assert world.committed("g") == 2, "memory must say what the log says"


@pytest.mark.parametrize("seed", range(10))
@in_a_loop
async def test_the_last_of_many_commits_at_once_wins_whatever_the_disk_finishes_first(seed: int) -> None:
    world = World(seed=seed)
    await asyncio.gather(*(world.commit("g", offset) for offset in range(50)))
    assert world.committed("g") == 49, f"seed {seed}"
    world.restart()
    assert world.committed("g") == 49, f"seed {seed}"


@in_a_loop
async def test_all_partitions_of_a_commit_are_in_one_batch() -> None:
    world = World()
    offsets = tuple(OffsetToCommit("t", partition, 1) for partition in range(100))
    await world.groups.commit(CommitRequest(group_id="g", offsets=offsets))
    (batch,) = world.topic.batches
    assert len(batch.records) == 100
    assert batch.partition == world.partition_of("g")


@in_a_loop
async def test_offsets_of_topics_that_nobody_subscribes_to_can_be_deleted() -> None:
    world = World()
    joined = await world.member()
    for topic in ("t", "u"):
        await world.commit("g", 1, topic=topic, member_id=joined.member_id, generation=1)
    answers = await world.groups.delete_offsets("g", [("t", 0), ("u", 0), ("u", 9)])
    assert answers == {
        ("t", 0): ErrorCode.group_subscribed_to_topic,
        ("u", 0): ErrorCode.none,
        ("u", 9): ErrorCode.none,
    }
    assert (world.committed("g", topic="t"), world.committed("g", topic="u")) == (1, None)
    world.restart()
    assert (world.committed("g", topic="t"), world.committed("g", topic="u")) == (1, None)


@in_a_loop
async def test_offsets_of_an_empty_group_can_all_be_deleted() -> None:
    world = World()
    await world.commit("g", 1)
    assert await world.groups.delete_offsets("g", [("t", 0)]) == {("t", 0): ErrorCode.none}
    assert world.committed("g") is None


@pytest.mark.parametrize(
    ("group", "code"),
    [("", ErrorCode.invalid_group_id), ("x", ErrorCode.group_id_not_found), ("workers", ErrorCode.non_empty_group)],
)
@in_a_loop
async def test_whose_offsets_cannot_be_deleted(group: str, code: ErrorCode) -> None:
    world = World()
    await world.member("workers", protocol_type="connect")
    with pytest.raises(ProtocolError) as refused:
        await world.groups.delete_offsets(group, [("t", 0)])
    assert refused.value.code is code


@in_a_loop
async def test_offsets_whose_deletion_cannot_be_stored_stay() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.refuses = StorageError("the disk is full")
    with pytest.raises(ProtocolError, match="disk is full"):
        await world.groups.delete_offsets("g", [("t", 0)])
    assert world.committed("g") == 1


@in_a_loop
async def test_a_group_id_that_cannot_be_stored_is_refused() -> None:
    await expect_refusal(World(), ErrorCode.invalid_group_id, commit_request("x" * 40_000, 1))


@in_a_loop
async def test_offsets_cannot_be_deleted_while_the_subscriptions_of_the_members_cannot_be_known() -> None:
    world = World()
    await world.member(protocols=(MemberProtocol("range", b"in a language of its own"),))
    answers = await world.groups.delete_offsets("g", [("t", 0)])
    assert answers == {("t", 0): ErrorCode.group_subscribed_to_topic}
