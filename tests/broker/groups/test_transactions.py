"""Offsets that are committed as part of a producer's transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import FetchedOffset
from penstock.errors import InvalidProducerEpochError
from tests.broker.groups.doubles import World, commit_request, in_a_loop, settle

PRODUCER = 4_000


async def commit_pending(
    world: World, offset: int, group: str = "g", producer_id: int = PRODUCER, **options: Any
) -> ErrorCode:
    answers = await world.groups.commit_in_transaction(producer_id, 0, commit_request(group, offset, **options))
    return answers["t", 0]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("commit", "expected"), [(True, 9), (False, 1)])
@in_a_loop
async def test_offsets_of_a_transaction_count_once_it_is_committed(commit: bool, expected: int, restarts: bool) -> None:
    world = World()
    await world.commit("g", 1)
    assert await commit_pending(world, 9) is ErrorCode.none
    if restarts:
        world.restart()
    assert world.committed("g") == 1
    world.end_transaction(PRODUCER, commit, "g")
    assert world.committed("g") == expected
    world.restart()
    assert world.committed("g") == expected
    assert world.groups.open_transactions() == []


@in_a_loop
async def test_the_records_of_a_transaction_are_marked_as_such() -> None:
    world = World()
    await world.groups.commit_in_transaction(PRODUCER, 3, commit_request("g", 9))
    (batch,) = world.topic.batches
    assert (batch.transactional, batch.producer_id, world.topic.last_epoch) == (True, PRODUCER, 3)


@in_a_loop
async def test_who_asks_for_stable_offsets_is_told_that_one_is_pending() -> None:
    world = World()
    await world.commit("g", 1, partition=0)
    await world.commit("g", 2, partition=1)
    await commit_pending(world, 9)
    unstable = FetchedOffset(error=ErrorCode.unstable_offset_commit)
    assert await world.groups.fetch("g", [("t", 0), ("t", 1)], require_stable=True) == {
        ("t", 0): unstable,
        ("t", 1): FetchedOffset(2),
    }
    assert await world.groups.fetch("g", None, require_stable=True) == {("t", 0): unstable, ("t", 1): FetchedOffset(2)}
    assert await world.groups.fetch("g", [("t", 0)]) == {("t", 0): FetchedOffset(1)}
    world.end_transaction(PRODUCER, True, "g")
    assert await world.groups.fetch("g", [("t", 0)], require_stable=True) == {("t", 0): FetchedOffset(9)}


@in_a_loop
async def test_who_asks_for_stable_offsets_waits_for_those_on_their_way_to_the_log() -> None:
    world = World()
    world.topic.hold()
    committing = asyncio.ensure_future(commit_pending(world, 9))
    await settle()
    fetching = asyncio.ensure_future(world.groups.fetch("g", [("t", 0)], require_stable=True))
    await settle()
    assert not fetching.done()
    await world.topic.release()
    assert (await fetching)["t", 0].error is ErrorCode.unstable_offset_commit
    assert await committing is ErrorCode.none


@in_a_loop
async def test_transactions_of_several_producers_do_not_mix() -> None:
    world = World()
    await commit_pending(world, 5, producer_id=1)
    await commit_pending(world, 6, producer_id=2)
    assert sorted(world.groups.open_transactions()) == [1, 2]
    world.end_transaction(1, True, "g")
    assert world.committed("g") == 5
    assert (await world.groups.fetch("g", [("t", 0)], require_stable=True))["t", 0].error is not ErrorCode.none
    world.end_transaction(2, False, "g")
    assert world.committed("g") == 5


@pytest.mark.parametrize("restarts", [False, True])
@in_a_loop
async def test_a_later_commit_outside_the_transaction_stays_when_that_is_committed(restarts: bool) -> None:
    world = World()
    await commit_pending(world, 5)
    await world.commit("g", 100)
    world.end_transaction(PRODUCER, True, "g")
    if restarts:
        world.restart()
    assert world.committed("g") == 100


@in_a_loop
async def test_one_transaction_can_hold_the_offsets_of_several_groups() -> None:
    world = World()
    groups = [f"group-{number}" for number in range(8)]
    for group in groups:
        await commit_pending(world, 5, group=group)
    partitions = {world.partition_of(group) for group in groups}
    assert len(partitions) > 1
    first = min(partitions)
    world.topic.mark(first, PRODUCER, True)
    world.groups.complete_transaction(PRODUCER, commit=True, partition=first)
    for group in groups:
        expected = 5 if world.partition_of(group) == first else None
        assert world.committed(group) == expected
    world.restart()
    for group in groups:
        expected = 5 if world.partition_of(group) == first else None
        assert world.committed(group) == expected
    world.groups.complete_transaction(PRODUCER, commit=True)
    assert {world.committed(group) for group in groups} == {5}


@pytest.mark.parametrize("partition", [None, "its own"])
@in_a_loop
async def test_the_end_of_a_transaction_waits_its_turn_behind_a_commit_that_is_being_applied(
    partition: str | None,
) -> None:
    world = World()
    world.topic.hold()
    committing = asyncio.ensure_future(commit_pending(world, 9))
    await settle()
    world.groups.complete_transaction(
        PRODUCER, commit=True, partition=None if partition is None else world.partition_of("g")
    )
    assert world.committed("g") is None
    await world.topic.release()
    assert await committing is ErrorCode.none
    assert world.committed("g") == 9
    assert world.groups.open_transactions() == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"generation": 1, "member_id": "me"}, ErrorCode.none),
        ({"generation": 2, "member_id": "me"}, ErrorCode.illegal_generation),
        ({"generation": 1, "member_id": "ghost"}, ErrorCode.unknown_member_id),
        ({"generation": 1, "member_id": "me", "instance_id": "i"}, ErrorCode.unknown_member_id),
        ({}, ErrorCode.none),
    ],
)
@in_a_loop
async def test_which_members_may_commit_in_a_transaction(options: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    joined = await world.member()
    if options.get("member_id") == "me":
        options = {**options, "member_id": joined.member_id}
    if code is ErrorCode.none:
        assert await commit_pending(world, 9, **options) is ErrorCode.none
        return
    with pytest.raises(ProtocolError) as refused:
        await commit_pending(world, 9, **options)
    assert refused.value.code is code


@in_a_loop
async def test_a_fenced_static_member_may_not_commit_in_a_transaction() -> None:
    world = World()
    task = world.join(instance_id="i")
    await world.clock.advance(0)
    joined = await task
    await world.sync(joined, {}, instance_id="i")
    await world.join(instance_id="i")
    with pytest.raises(ProtocolError, match="fenced_instance_id"):
        await commit_pending(world, 9, member_id=joined.member_id, generation=1, instance_id="i")


@in_a_loop
async def test_a_commit_in_a_transaction_is_taken_while_the_rebalance_completes() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    assert world.state() == "CompletingRebalance"
    assert await commit_pending(world, 9, member_id=joined.member_id, generation=1) is ErrorCode.none


@pytest.mark.parametrize(
    ("group", "producer_id", "options", "code"),
    [
        ("", PRODUCER, {}, ErrorCode.invalid_group_id),
        ("x", -1, {}, ErrorCode.invalid_producer_id_mapping),
        ("x", PRODUCER, {"generation": 3, "member_id": "m"}, ErrorCode.illegal_generation),
    ],
)
@in_a_loop
async def test_what_cannot_be_committed_in_a_transaction(
    group: str, producer_id: int, options: dict[str, Any], code: ErrorCode
) -> None:
    world = World()
    with pytest.raises(ProtocolError) as refused:
        await commit_pending(world, 9, group, producer_id, **options)
    assert refused.value.code is code
    assert world.topic.batches == []


@in_a_loop
async def test_offsets_outside_of_a_transaction_are_refused_before_anything_else_is_looked_at() -> None:
    world = World()
    world.transactions[PRODUCER] = ErrorCode.transaction_abortable
    with pytest.raises(ProtocolError, match="transaction_abortable"):
        await commit_pending(world, 9, member_id="ghost", generation=7)
    assert world.topic.batches == []
    assert world.groups.open_transactions() == []


@in_a_loop
async def test_what_the_log_says_about_an_old_producer_reaches_it() -> None:
    world = World()
    world.topic.refuses = InvalidProducerEpochError("a newer instance exists")
    assert await commit_pending(world, 9) is ErrorCode.invalid_producer_epoch
    assert world.groups.open_transactions() == []


@pytest.mark.parametrize("restarts", [False, True])
@in_a_loop
async def test_a_deleted_offset_does_not_come_back_with_a_transaction(restarts: bool) -> None:
    world = World()
    await world.commit("g", 1)
    await commit_pending(world, 9)
    await world.groups.delete_offsets("g", [("t", 0)])
    world.end_transaction(PRODUCER, True, "g")
    if restarts:
        world.restart()
    assert world.committed("g") is None


@in_a_loop
async def test_a_marker_without_offsets_changes_nothing() -> None:
    world = World()
    await world.commit("g", 1)
    world.end_transaction(PRODUCER, True, "g")
    world.restart()
    assert world.committed("g") == 1
