"""SyncGroup and Heartbeat: how members get their assignment, and how they stay."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import SyncRequest
from penstock.broker.groups.records import GroupKey, read_group_value, read_key
from penstock.errors import StorageError
from tests.broker.groups.doubles import REBALANCE_MS, SESSION_MS, World, in_a_loop, settle


def expect_heartbeat(world: World, code: ErrorCode, member_id: str, generation: int, group: str = "g") -> None:
    if code is ErrorCode.none:
        world.groups.heartbeat(group, member_id, generation)
        return
    with pytest.raises(ProtocolError) as refused:
        world.groups.heartbeat(group, member_id, generation)
    assert refused.value.code is code


@in_a_loop
async def test_every_member_gets_what_the_leader_assigned() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    assert world.state() == "Stable"
    assert (await world.sync(leader)).assignment == b"for the leader"
    assert (await world.sync(follower)).assignment == b"for the follower"


@in_a_loop
async def test_followers_wait_for_the_leader() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    leader, follower = await world.join(member_id=first.member_id), await second
    waiting = world.sync(follower)
    await settle()
    assert not waiting.done()
    answer = await world.sync(leader, {follower.member_id: b"yours"})
    assert (answer.error, answer.assignment) == (ErrorCode.none, b""), "whom the leader forgot gets nothing"
    answer = await waiting
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (b"yours", "consumer", "range")


@in_a_loop
async def test_an_assignment_is_handed_out_only_once_it_is_durable() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    world.topic.hold()
    waiting = world.sync(joined, {joined.member_id: b"mine"})
    await settle()
    assert not waiting.done()
    assert world.state() == "CompletingRebalance"
    await world.topic.release()
    assert (await waiting).assignment == b"mine"
    assert world.state() == "Stable"


@in_a_loop
async def test_the_group_is_stored_when_its_rebalance_completes() -> None:
    world = World()
    joined = await world.member(assignment=b"mine", client_host="/10.0.0.1")
    ((key, value),) = world.topic.records()
    assert read_key(key) == GroupKey("g")
    assert value is not None
    stored = read_group_value(value)
    assert (stored.generation, stored.leader, stored.protocol) == (1, joined.member_id, "range")
    (member,) = stored.members
    assert (member.member_id, member.assignment, member.client_host) == (joined.member_id, b"mine", "/10.0.0.1")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (SESSION_MS, REBALANCE_MS)


@in_a_loop
async def test_an_assignment_that_cannot_be_stored_is_not_handed_out() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    leader, follower = await world.join(member_id=first.member_id), await second
    waiting = world.sync(follower)
    await settle()
    world.topic.refuses = StorageError("the disk is full")
    answer = await world.sync(leader, {follower.member_id: b"yours"})
    assert (answer.error, answer.assignment) == (ErrorCode.not_coordinator, b"")
    assert (await waiting).error is ErrorCode.not_coordinator
    assert world.state() == "PreparingRebalance", "the members are to try again"


@in_a_loop
async def test_a_rebalance_sends_those_away_who_wait_for_an_assignment() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    await world.join(member_id=first.member_id)
    waiting = world.sync(await second)
    await settle()
    await world.begin_join()
    assert (await waiting).error is ErrorCode.rebalance_in_progress


@in_a_loop
async def test_an_assignment_that_comes_after_the_next_rebalance_began_is_dropped() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    leader = await task
    world.topic.hold()
    late = world.sync(leader, {leader.member_id: b"old"})
    await settle()
    newcomer = await world.begin_join()
    assert (await late).error is ErrorCode.rebalance_in_progress
    await world.topic.release()
    assert world.state() == "PreparingRebalance"
    again = await world.join(member_id=leader.member_id)
    assert (await newcomer).generation == again.generation == 2
    assert all(member.assignment == b"" for member in world.groups.describe("g").members.values())  # type: ignore[union-attr]


@in_a_loop
async def test_a_leader_that_syncs_twice_gets_its_assignment() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    leader = await task
    world.topic.hold()
    lost = world.sync(leader, {leader.member_id: b"mine"})
    await settle()
    again = world.sync(leader, {leader.member_id: b"mine"})
    await settle()
    assert (await lost).error is ErrorCode.rebalance_in_progress
    await world.topic.release()
    assert (await again).assignment == b"mine"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "unknown"}, ErrorCode.unknown_member_id),
        ({"member_id": "ghost"}, ErrorCode.unknown_member_id),
        ({"generation": 7}, ErrorCode.illegal_generation),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.none),
        ({"instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
)
@in_a_loop
async def test_who_may_sync(change: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    joined = await world.member()
    fields: dict[str, Any] = {
        "group_id": "g",
        "member_id": joined.member_id,
        "generation": joined.generation,
        "assignments": {},
        **change,
    }
    answer = await world.groups.sync(SyncRequest(**fields))
    assert answer.error is code


@in_a_loop
async def test_a_sync_during_the_join_phase_means_join_again() -> None:
    world = World()
    first = await world.member()
    await world.begin_join()
    assert (await world.sync(first)).error is ErrorCode.rebalance_in_progress


@in_a_loop
async def test_heartbeats_say_in_which_state_the_group_is() -> None:
    world = World()
    expect_heartbeat(world, ErrorCode.invalid_group_id, "m", 1, group="")
    expect_heartbeat(world, ErrorCode.unknown_member_id, "m", 1)
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    expect_heartbeat(world, ErrorCode.none, joined.member_id, 1)
    await world.sync(joined)
    expect_heartbeat(world, ErrorCode.none, joined.member_id, 1)
    expect_heartbeat(world, ErrorCode.illegal_generation, joined.member_id, 2)
    expect_heartbeat(world, ErrorCode.unknown_member_id, "ghost", 1)
    await world.begin_join()
    expect_heartbeat(world, ErrorCode.rebalance_in_progress, joined.member_id, 1)


@in_a_loop
async def test_a_member_that_heartbeats_stays() -> None:
    world = World()
    joined = await world.member()
    for _ in range(10):
        await world.clock.advance(SESSION_MS - 1)
        world.groups.heartbeat("g", joined.member_id, 1)
    assert world.state() == "Stable"


@in_a_loop
async def test_heartbeats_arm_no_new_timers() -> None:
    world = World()
    joined = await world.member()
    before = world.clock.armed
    for _ in range(1_000):
        world.groups.heartbeat("g", joined.member_id, 1)
    assert world.clock.armed == before
