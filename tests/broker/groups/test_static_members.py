"""Static membership: a consumer with `group.instance.id` comes back into its own place."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.groups.messages import CommitRequest, JoinAnswer, LeavingMember, OffsetToCommit
from penstock.errors import StorageError
from tests.broker.groups.doubles import REBALANCE_MS, SESSION_MS, World, in_a_loop, protocols, settle


async def static_pair(world: World, **options: Any) -> tuple[JoinAnswer, JoinAnswer]:
    """A stable group of the instances "a", which leads, and "b"."""
    first = world.join(instance_id="a", **options)
    await world.clock.advance(0)
    second = world.join(instance_id="b", **options)
    await settle()
    again = world.join(member_id=(await first).member_id, instance_id="a", **options)
    leader, follower = await again, await second
    assignments = {leader.member_id: b"for a", follower.member_id: b"for b"}
    syncs = [world.sync(follower, instance_id="b"), world.sync(leader, assignments, instance_id="a")]
    assert [(await each).error for each in syncs] == [ErrorCode.none, ErrorCode.none]
    return leader, follower


@in_a_loop
async def test_a_static_member_joins_without_the_detour_over_an_id() -> None:
    world = World()
    task = world.join(instance_id="a")
    await world.clock.advance(0)
    joined = await task
    assert (joined.error, joined.member_id) == (ErrorCode.none, "a-id1")
    assert [member.instance_id for member in joined.members] == ["a"]


@in_a_loop
async def test_a_static_follower_that_comes_back_keeps_its_assignment_without_a_rebalance() -> None:
    world = World()
    leader, follower = await static_pair(world)
    back = await world.join(instance_id="b", client_host="/10.0.0.2")
    assert back.error is ErrorCode.none
    assert back.member_id not in (follower.member_id, "")
    assert (back.generation, back.leader, back.skip_assignment) == (2, leader.member_id, False)
    assert (await world.sync(back, instance_id="b")).assignment == b"for b"
    assert world.state() == "Stable"
    world.groups.heartbeat("g", leader.member_id, 2, "a")


@in_a_loop
async def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    world = World()
    await static_pair(world)
    back = await world.join(instance_id="a")
    assert (back.leader, back.skip_assignment) == (back.member_id, True)
    assert {member.instance_id for member in back.members} == {"a", "b"}
    assert (await world.sync(back, instance_id="a")).assignment == b"for a"
    assert world.state() == "Stable"


@in_a_loop
async def test_an_old_static_leader_that_comes_back_does_not_learn_that_it_leads() -> None:
    world = World()
    leader, _ = await static_pair(world)
    back = await world.join(instance_id="a", can_skip_assignment=False)
    assert (back.leader, back.skip_assignment, back.members) == (leader.member_id, False, ())
    assert back.member_id != leader.member_id


@in_a_loop
async def test_the_one_before_is_fenced_everywhere() -> None:
    world = World()
    _, follower = await static_pair(world)
    await world.join(instance_id="b")
    old = follower.member_id
    with pytest.raises(ProtocolError, match="fenced_instance_id"):
        world.groups.heartbeat("g", old, 2, "b")
    assert (await world.sync(follower, instance_id="b")).error is ErrorCode.fenced_instance_id
    assert (await world.join(member_id=old, instance_id="b")).error is ErrorCode.fenced_instance_id
    with pytest.raises(ProtocolError, match="fenced_instance_id"):
        await world.groups.commit(
            CommitRequest(
                group_id="g", offsets=(OffsetToCommit("t", 0, 1),), member_id=old, generation=2, instance_id="b"
            )
        )
    (left,) = await world.groups.leave("g", [LeavingMember(old, "b")])
    assert left.error is ErrorCode.fenced_instance_id


@in_a_loop
async def test_without_its_instance_id_the_one_before_is_unknown() -> None:
    world = World()
    _, follower = await static_pair(world)
    await world.join(instance_id="b")
    with pytest.raises(ProtocolError, match="unknown_member_id"):
        world.groups.heartbeat("g", follower.member_id, 2)


@in_a_loop
async def test_a_replacement_is_durable_before_it_is_answered() -> None:
    world = World()
    await static_pair(world)
    world.topic.hold()
    task = world.join(instance_id="b")
    await settle()
    assert not task.done()
    await world.topic.release()
    back = await task
    world.restart()
    assert (await world.sync(back, instance_id="b")).assignment == b"for b"


@in_a_loop
async def test_a_replacement_that_cannot_be_stored_is_taken_back() -> None:
    world = World()
    _, follower = await static_pair(world)
    world.topic.refuses = StorageError("the disk is full")
    refused = await world.join(instance_id="b")
    assert (refused.error, refused.member_id) == (ErrorCode.not_coordinator, "")
    world.groups.heartbeat("g", follower.member_id, 2, "b")
    assert world.state() == "Stable"


@in_a_loop
async def test_a_rebalance_that_begins_while_a_replacement_is_written_includes_it() -> None:
    world = World()
    leader, _ = await static_pair(world)
    world.topic.hold()
    back = world.join(instance_id="b")
    await settle()
    newcomer = await world.begin_join()
    again = world.join(member_id=leader.member_id, instance_id="a")
    generations = {(await task).generation for task in (back, newcomer, again)}
    assert generations == {3}
    await world.topic.release()
    assert world.state() == "CompletingRebalance"


@in_a_loop
async def test_a_static_member_that_comes_back_with_another_protocol_starts_a_rebalance() -> None:
    world = World()
    leader, _ = await static_pair(world, protocols=protocols("range", "sticky"))
    back = world.join(instance_id="b", protocols=protocols("sticky"))
    await settle()
    assert world.state() == "PreparingRebalance"
    again = await world.join(member_id=leader.member_id, instance_id="a", protocols=protocols("range", "sticky"))
    assert (await back).generation == again.generation == 3
    assert again.protocol_name == "sticky"


@in_a_loop
async def test_a_static_member_that_comes_back_with_new_metadata_but_the_same_protocol_causes_no_rebalance() -> None:
    world = World()
    await static_pair(world)
    back = await world.join(instance_id="b", protocols=protocols("range", topics=("t", "u")))
    assert (back.error, back.generation) == (ErrorCode.none, 2)
    assert world.state() == "Stable"


@in_a_loop
async def test_a_static_member_that_comes_back_while_the_rebalance_completes_starts_it_over() -> None:
    world = World()
    leader, _ = await static_pair(world)
    first = world.join(member_id=leader.member_id, instance_id="a")
    second = world.join(instance_id="b")
    await settle()
    assert world.state() == "CompletingRebalance"
    waiting = world.sync(await second, instance_id="b")
    await settle()
    back = world.join(instance_id="b")
    await settle()
    assert (await waiting).error is ErrorCode.fenced_instance_id
    assert world.state() == "PreparingRebalance"
    again = await world.join(member_id=(await first).member_id, instance_id="a")
    assert (await back).generation == again.generation == 4


@in_a_loop
async def test_a_static_member_that_joins_twice_while_all_join_has_its_first_request_fenced() -> None:
    world = World()
    leader, _ = await static_pair(world)
    await world.begin_join()
    first = world.join(instance_id="b")
    await settle()
    second = world.join(instance_id="b")
    await settle()
    assert (await first).error is ErrorCode.fenced_instance_id
    await world.join(member_id=leader.member_id, instance_id="a")
    assert (await second).generation == 3


@in_a_loop
async def test_a_static_member_that_stays_away_keeps_its_place_for_its_session_only() -> None:
    world = World()
    leader, follower = await static_pair(world)
    newcomer = await world.begin_join(rebalance_timeout_ms=1_000)
    again = world.join(member_id=leader.member_id, instance_id="a", rebalance_timeout_ms=1_000)
    await world.clock.advance(SESSION_MS - 1)
    assert not again.done(), "it is waited for until its session ends"
    await world.clock.advance(1)
    assert {(await task).generation for task in (again, newcomer)} == {3}
    with pytest.raises(ProtocolError, match="unknown_member_id"):
        world.groups.heartbeat("g", follower.member_id, 2, "b")


@in_a_loop
async def test_a_static_member_that_stays_away_is_part_of_the_next_generation() -> None:
    world = World()
    long_session: dict[str, Any] = {"session_timeout_ms": 100_000}
    leader, follower = await static_pair(world, **long_session)
    newcomer = await world.begin_join(**long_session)
    again = world.join(member_id=leader.member_id, instance_id="a", **long_session)
    await world.clock.advance(REBALANCE_MS)
    told = await again
    assert told.generation == (await newcomer).generation == 3
    assert {member.instance_id for member in told.members} == {"a", "b", None}
    back = await world.join(member_id=follower.member_id, instance_id="b", **long_session)
    assert (back.error, back.generation) == (ErrorCode.none, 3)


@in_a_loop
async def test_when_only_static_members_are_left_and_none_joins_the_group_waits_for_their_sessions() -> None:
    world = World()
    _, follower = await static_pair(world, session_timeout_ms=150_000)
    await world.groups.leave("g", [LeavingMember("", "a")])
    assert world.state() == "PreparingRebalance"
    await world.clock.advance(REBALANCE_MS * 2)
    assert world.state() == "PreparingRebalance"
    back = await world.join(member_id=follower.member_id, instance_id="b")
    assert (back.error, back.generation, back.leader) == (ErrorCode.none, 3, follower.member_id)


@in_a_loop
async def test_an_admin_removes_static_members_by_their_instance_id() -> None:
    world = World()
    leader, _ = await static_pair(world)
    answers = await world.groups.leave("g", [LeavingMember("", "b"), LeavingMember("", "z"), LeavingMember("")])
    assert [answer.error for answer in answers] == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert world.state() == "PreparingRebalance"
    again = await world.join(member_id=leader.member_id, instance_id="a")
    assert [member.instance_id for member in again.members] == ["a"]


@in_a_loop
async def test_static_members_survive_a_restart_with_their_assignment() -> None:
    world = World()
    leader, follower = await static_pair(world)
    world.restart()
    world.groups.heartbeat("g", leader.member_id, 2, "a")
    assert (await world.sync(follower, instance_id="b")).assignment == b"for b"
    back = await world.join(instance_id="b")
    assert back.generation == 2
    assert (await world.sync(back, instance_id="b")).assignment == b"for b"


@in_a_loop
async def test_an_id_that_was_handed_out_cannot_be_used_for_another_instance() -> None:
    world = World()
    expected = await world.new_id()
    assert (await world.join(member_id=expected, instance_id="a")).error is ErrorCode.unknown_member_id


@in_a_loop
async def test_a_rebalance_that_begins_while_a_replacement_is_written_makes_it_wait_for_the_others() -> None:
    world = World()
    leader, _ = await static_pair(world)
    world.topic.hold()
    back = world.join(instance_id="b")
    await settle()
    newcomer = await world.begin_join()
    await world.topic.release()
    assert not back.done(), "an answer about the old generation would only make it join again"
    again = world.join(member_id=leader.member_id, instance_id="a")
    assert {(await task).generation for task in (back, newcomer, again)} == {3}


@in_a_loop
async def test_a_replacement_that_cannot_be_stored_stays_once_a_rebalance_has_begun() -> None:
    world = World()
    leader, follower = await static_pair(world)
    world.topic.hold()
    back = world.join(instance_id="b")
    await settle()
    newcomer = await world.begin_join()
    await world.topic.release(StorageError("the disk is full"))
    again = world.join(member_id=leader.member_id, instance_id="a")
    assert {(await task).generation for task in (back, newcomer, again)} == {3}
    with pytest.raises(ProtocolError, match="fenced_instance_id"):
        world.groups.heartbeat("g", follower.member_id, 3, "b")


@in_a_loop
async def test_the_leader_is_the_same_after_a_restart() -> None:
    world = World()
    long_session: dict[str, Any] = {"session_timeout_ms": 100_000}
    _, follower = await static_pair(world, **long_session)
    changed = protocols("range", topics=("t", "u"))
    again = world.join(member_id=follower.member_id, instance_id="b", protocols=changed, **long_session)
    await world.clock.advance(REBALANCE_MS)
    joined = await again
    assert joined.leader == follower.member_id, "the leader before it did not join again"
    await world.sync(joined, {}, instance_id="b")
    world.restart()
    assert world.groups.describe("g").leader_id == follower.member_id  # type: ignore[union-attr]
