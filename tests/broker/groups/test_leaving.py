"""LeaveGroup, and clients that go away without a word."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import LeavingMember
from penstock.errors import StorageError
from tests.broker.groups.doubles import SESSION_MS, World, in_a_loop, settle


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await settle()


@in_a_loop
async def test_the_others_are_rebalanced_when_a_member_leaves() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    (left,) = await world.groups.leave("g", [LeavingMember(follower.member_id, reason="done")])
    assert (left.member_id, left.error) == (follower.member_id, ErrorCode.none)
    assert world.state() == "PreparingRebalance"
    assert (await world.join(member_id=leader.member_id)).generation == 3


@in_a_loop
async def test_the_last_to_leave_leaves_an_empty_group_in_the_log() -> None:
    world = World()
    joined = await world.member()
    await world.groups.leave("g", [LeavingMember(joined.member_id)])
    assert world.state() == "Empty"
    world.restart()
    assert world.state() == "Empty"


@in_a_loop
async def test_several_members_leave_with_one_rebalance() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    answers = await world.groups.leave(
        "g", [LeavingMember(leader.member_id), LeavingMember("ghost"), LeavingMember(follower.member_id)]
    )
    assert [answer.error for answer in answers] == [ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.none]
    assert world.state() == "Empty"
    assert world.groups.describe("g").generation == 3  # type: ignore[union-attr]


@in_a_loop
async def test_leaving_an_unknown_group_is_answered_for_every_member() -> None:
    world = World()
    (answer,) = await world.groups.leave("g", [LeavingMember("m", "i")])
    assert (answer.member_id, answer.instance_id, answer.error) == ("m", "i", ErrorCode.unknown_member_id)
    with pytest.raises(ProtocolError, match="invalid_group_id"):
        await world.groups.leave("", [])


@in_a_loop
async def test_somebody_with_an_id_can_leave_before_it_joined() -> None:
    world = World()
    first = await world.member()
    expected = await world.new_id()
    second = await world.begin_join()
    again = world.join(member_id=first.member_id)
    await settle()
    (answer,) = await world.groups.leave("g", [LeavingMember(expected)])
    assert answer.error is ErrorCode.none
    assert {(await task).generation for task in (again, second)} == {2}


@in_a_loop
async def test_a_member_that_leaves_while_it_waits_has_its_requests_answered() -> None:
    world = World()
    first = await world.member()
    waiting = await world.begin_join()
    member_id = [m.member_id for m in world.groups.describe("g").members.values()][-1]  # type: ignore[union-attr]
    await world.groups.leave("g", [LeavingMember(member_id)])
    assert (await waiting).error is ErrorCode.unknown_member_id
    second = await world.begin_join()
    leader, follower = await world.join(member_id=first.member_id), await second
    syncing = world.sync(follower)
    await settle()
    await world.groups.leave("g", [LeavingMember(follower.member_id)])
    assert (await syncing).error is ErrorCode.unknown_member_id
    assert leader.generation == 2


@in_a_loop
async def test_a_newcomer_whose_connection_breaks_holds_nobody_up() -> None:
    world = World()
    first = await world.member()
    newcomer = await world.begin_join()
    again = world.join(member_id=first.member_id, protocols=())
    assert (await again).error is ErrorCode.inconsistent_group_protocol
    await cancel(newcomer)
    assert world.state() == "PreparingRebalance"
    joined = await world.join(member_id=first.member_id)
    assert (joined.generation, len(joined.members)) == (2, 1)


@in_a_loop
async def test_the_first_member_whose_connection_breaks_leaves_no_ghost_behind() -> None:
    world = World()
    task = await world.begin_join()
    await cancel(task)
    assert world.state() == "Empty"
    joined = await world.member()
    assert len(joined.members) == 1


@in_a_loop
async def test_a_member_whose_connection_breaks_in_a_join_may_come_back_until_its_session_ends() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    newcomer = await world.begin_join()
    broken = world.join(member_id=follower.member_id)
    await settle()
    await cancel(broken)
    waiting = world.join(member_id=leader.member_id)
    await world.clock.advance(SESSION_MS - 1)
    assert not waiting.done(), "it has not joined: its answer would reach nobody"
    back = world.join(member_id=follower.member_id)
    assert {(await task).generation for task in (waiting, newcomer, back)} == {3}


@in_a_loop
async def test_a_member_whose_connection_breaks_in_a_join_is_removed_when_its_session_ends() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    newcomer = await world.begin_join()
    broken = world.join(member_id=follower.member_id)
    await settle()
    await cancel(broken)
    waiting = world.join(member_id=leader.member_id)
    await world.clock.advance(SESSION_MS)
    assert {(await task).generation for task in (waiting, newcomer)} == {3}


@in_a_loop
async def test_a_follower_whose_connection_breaks_in_a_sync_can_sync_again() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    leader, follower = await world.join(member_id=first.member_id), await second
    broken = world.sync(follower)
    await settle()
    await cancel(broken)
    await world.sync(leader, {follower.member_id: b"yours"})
    assert (await world.sync(follower)).assignment == b"yours"


@in_a_loop
async def test_the_assignment_of_a_leader_whose_connection_breaks_still_counts_once_it_is_written() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    leader = await task
    world.topic.hold()
    broken = world.sync(leader, {leader.member_id: b"mine"})
    await settle()
    await cancel(broken)
    await world.topic.release()
    assert world.state() == "Stable"
    assert (await world.sync(leader)).assignment == b"mine"


@in_a_loop
async def test_a_join_that_is_answered_and_cancelled_in_the_same_moment_breaks_nothing() -> None:
    world = World()
    first = await world.member()
    newcomer = await world.begin_join()
    newcomer.cancel()
    joined = await world.join(member_id=first.member_id)
    assert joined.generation == 2
    await settle()
    assert newcomer.cancelled()
    await world.clock.advance(SESSION_MS)
    assert world.state() in ("Empty", "PreparingRebalance")


@in_a_loop
async def test_closing_answers_everybody_and_stops_every_clock() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    waiting = await world.begin_join()
    await world.groups.close()
    assert (await waiting).error is ErrorCode.not_coordinator
    assert (await world.join()).error is ErrorCode.coordinator_not_available
    assert (await world.sync(leader)).error is ErrorCode.coordinator_not_available
    with pytest.raises(ProtocolError, match="coordinator_not_available"):
        world.groups.heartbeat("g", follower.member_id, 2)
    assert world.clock.waiting() == 0
    world.restart()
    assert world.state() == "Stable", "members go on where they were"


@in_a_loop
async def test_closing_waits_for_what_is_being_written() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    leader = await task
    world.topic.hold()
    world.sync(leader, {leader.member_id: b"mine"})
    await settle()
    closing = asyncio.ensure_future(world.groups.close())
    await settle()
    assert not closing.done()
    await world.topic.release()
    await closing
    assert world.clock.waiting() == 0


@in_a_loop
async def test_a_write_that_fails_while_closing_starts_no_clock() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    leader = await task
    world.topic.hold()
    world.sync(leader, {leader.member_id: b"mine"})
    await settle()
    closing = asyncio.ensure_future(world.groups.close())
    await settle()
    await world.topic.release(StorageError("the disk is gone"))
    await closing
    assert world.clock.waiting() == 0
