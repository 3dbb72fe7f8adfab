"""What time does to groups: sessions, the wait for joins, the wait for syncs."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import JoinAnswer, SyncAnswer
from penstock.broker.groups.settings import GroupSettings
from tests.broker.groups.doubles import REBALANCE_MS, SESSION_MS, World, in_a_loop, settle


@in_a_loop
async def test_a_silent_member_is_removed_and_the_others_are_rebalanced() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", leader.member_id, 2)
    await world.clock.advance(2)
    assert world.state() == "PreparingRebalance"
    with pytest.raises(ProtocolError, match="rebalance_in_progress"):
        world.groups.heartbeat("g", leader.member_id, 2)
    with pytest.raises(ProtocolError, match="unknown_member_id"):
        world.groups.heartbeat("g", follower.member_id, 2)
    again = await world.join(member_id=leader.member_id)
    assert (again.generation, len(again.members)) == (3, 1)


@in_a_loop
async def test_a_group_whose_last_member_falls_silent_is_empty_and_stored_so() -> None:
    world = World()
    await world.member()
    await world.clock.advance(SESSION_MS)
    assert world.state() == "Empty"
    world.restart()
    assert world.state() == "Empty"
    assert world.groups.describe("g").generation == 2  # type: ignore[union-attr]


@in_a_loop
async def test_a_silent_leader_is_replaced() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", follower.member_id, 2)
    await world.clock.advance(2)
    again = await world.join(member_id=follower.member_id)
    assert (again.leader, again.generation) == (follower.member_id, 3)
    assert leader.member_id not in {member.member_id for member in again.members}


@in_a_loop
async def test_a_member_that_waits_in_a_join_needs_no_heartbeats() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    newcomer = await world.begin_join()
    waiting = world.join(member_id=leader.member_id)
    for _ in range(6):
        await world.clock.advance(SESSION_MS - 1_000)
        with pytest.raises(ProtocolError, match="rebalance_in_progress"):
            world.groups.heartbeat("g", follower.member_id, 2)
    assert not waiting.done()
    third = world.join(member_id=follower.member_id)
    assert {(await task).generation for task in (waiting, newcomer, third)} == {3}


@in_a_loop
async def test_a_member_that_does_not_join_again_in_time_is_left_behind() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    newcomer = await world.begin_join()
    waiting = world.join(member_id=follower.member_id)
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        await world.clock.advance(SESSION_MS // 2)
        if not waiting.done():
            with pytest.raises(ProtocolError, match="rebalance_in_progress"):
                world.groups.heartbeat("g", leader.member_id, 2)
    answers = [await waiting, await newcomer]
    assert {answer.generation for answer in answers} == {3}
    assert {answer.leader for answer in answers} <= {answer.member_id for answer in answers}
    with pytest.raises(ProtocolError, match="unknown_member_id"):
        world.groups.heartbeat("g", leader.member_id, 2)


@in_a_loop
async def test_a_member_that_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    leader, lazy = await world.join(member_id=first.member_id), await second
    await world.sync(leader, {})
    assert world.state() == "Stable"
    for _ in range(REBALANCE_MS // SESSION_MS * 2 - 1):
        await world.clock.advance(SESSION_MS // 2)
        world.groups.heartbeat("g", leader.member_id, 2)
        world.groups.heartbeat("g", lazy.member_id, 2)
    assert world.state() == "Stable"
    await world.clock.advance(SESSION_MS // 2)
    assert world.state() == "PreparingRebalance"
    assert [m.member_id for m in world.groups.describe("g").members.values()] == [leader.member_id]  # type: ignore[union-attr]


@in_a_loop
async def test_a_leader_that_dies_before_its_assignment_does_not_wedge_the_group() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    await world.join(member_id=first.member_id)
    follower = await second
    waiting = world.sync(follower)
    await world.clock.advance(SESSION_MS)
    assert (await waiting).error is ErrorCode.rebalance_in_progress
    again = await world.join(member_id=follower.member_id)
    assert again.leader == follower.member_id


@in_a_loop
async def test_somebody_who_never_uses_the_id_it_was_given_holds_nobody_up_for_long() -> None:
    world = World()
    first = await world.member()
    expected = await world.new_id()
    await world.clock.advance(1)
    second = await world.begin_join()
    again = world.join(member_id=first.member_id)
    await world.clock.advance(SESSION_MS - 2)
    assert not again.done()
    await world.clock.advance(1)
    assert {(await task).generation for task in (again, second)} == {2}
    late = await world.join(member_id=expected)
    assert late.error is ErrorCode.unknown_member_id


@in_a_loop
async def test_a_new_member_is_not_waited_for_longer_than_its_own_timeout() -> None:
    world = World(settings=GroupSettings(new_member_join_timeout_ms=20_000))
    first = await world.member(rebalance_timeout_ms=1_000_000)
    newcomer = await world.begin_join()
    for _ in range(5):
        await world.clock.advance(5_000)
        with pytest.raises(ProtocolError, match="rebalance_in_progress"):
            world.groups.heartbeat("g", first.member_id, 1)
    answer = await newcomer
    assert (answer.error, answer.member_id) == (ErrorCode.unknown_member_id, "")


@in_a_loop
async def test_nothing_is_left_ticking_in_a_group_that_is_gone() -> None:
    world = World()
    leader, _ = await world.stable_pair()
    await world.begin_join()
    await world.new_id()
    await world.clock.advance(REBALANCE_MS * 10)
    assert world.state() == "Empty"
    assert world.clock.waiting() == 0
    assert leader.generation == 2


@in_a_loop
async def test_a_restarted_session_counts_from_the_restart() -> None:
    world = World()
    joined = await world.member()
    await world.clock.advance(SESSION_MS - 1)
    world.restart()
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", joined.member_id, 1)
    await world.clock.advance(SESSION_MS)
    await settle()
    assert world.state() == "Empty"


@in_a_loop
async def test_a_member_that_waited_longer_than_its_session_has_it_again_when_all_have_joined() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    waiting = world.join(member_id=leader.member_id)
    for _ in range(3):
        await world.clock.advance(SESSION_MS - 1)
        with pytest.raises(ProtocolError, match="rebalance_in_progress"):
            world.groups.heartbeat("g", follower.member_id, 2)
    joined = await world.join(member_id=follower.member_id)
    assert (await waiting).generation == 3
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", joined.member_id, 3)
    assert len(world.groups.describe("g").members) == 2  # type: ignore[union-attr]
    await world.clock.advance(1)
    assert [m.member_id for m in world.groups.describe("g").members.values()] == [follower.member_id]  # type: ignore[union-attr]


async def silent_follower_in_a_sync(world: World) -> tuple[JoinAnswer, JoinAnswer, asyncio.Task[SyncAnswer]]:
    """A follower that has waited for its assignment for longer than its session, while the leader heartbeats."""
    first = await world.member()
    second = await world.begin_join()
    leader, follower = await world.join(member_id=first.member_id), await second
    waiting = world.sync(follower)
    for _ in range(3):
        await world.clock.advance(SESSION_MS - 1)
        world.groups.heartbeat("g", leader.member_id, 2)
    assert not waiting.done()
    return leader, follower, waiting


@in_a_loop
async def test_a_member_that_waited_longer_than_its_session_has_it_again_when_it_is_assigned() -> None:
    world = World()
    leader, follower, waiting = await silent_follower_in_a_sync(world)
    await world.sync(leader, {follower.member_id: b"yours"})
    assert (await waiting).assignment == b"yours"
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", leader.member_id, 2)
    assert world.state() == "Stable"
    await world.clock.advance(1)
    assert [m.member_id for m in world.groups.describe("g").members.values()] == [leader.member_id]  # type: ignore[union-attr]


@in_a_loop
async def test_a_member_whose_connection_breaks_after_a_long_wait_has_its_session_again() -> None:
    world = World()
    leader, _, waiting = await silent_follower_in_a_sync(world)
    waiting.cancel()
    await settle()
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", leader.member_id, 2)
    await world.clock.advance(1)
    assert [m.member_id for m in world.groups.describe("g").members.values()] == [leader.member_id]  # type: ignore[union-attr]


@in_a_loop
async def test_only_sessions_are_ticking_in_a_stable_group() -> None:
    world = World()
    await world.stable_pair()
    await world.clock.advance(1)
    assert world.clock.waiting() == 2
