"""JoinGroup: who gets in, who leads, which protocol is used, and who is sent away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.groups.messages import JoinRequest
from penstock.broker.groups.settings import GroupSettings
from tests.broker.groups.doubles import SESSION_MS, World, in_a_loop, join_request, protocols, settle


@in_a_loop
async def test_a_new_member_is_sent_away_with_an_id_first() -> None:
    world = World()
    answer = await world.groups.join(join_request("g", ""))
    assert (answer.error, answer.member_id) == (ErrorCode.member_id_required, "c-id1")
    assert world.state() == "Empty"
    assert world.groups.describe("g").members == {}  # type: ignore[union-attr]


@in_a_loop
async def test_an_old_client_joins_without_knowing_its_id() -> None:
    world = World()
    task = world.join(requires_known_member_id=False)
    await world.clock.advance(0)
    joined = await task
    assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.none, "c-id1", 1)


@in_a_loop
async def test_a_lone_member_leads_the_first_generation_at_once() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    assert joined.error is ErrorCode.none
    assert joined.generation == 1
    assert joined.leader == joined.member_id
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert [member.metadata for member in joined.members] == [protocols("range")[0].metadata]
    assert world.state() == "CompletingRebalance"


@in_a_loop
async def test_only_the_leader_hears_about_the_others() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    assert leader.generation == follower.generation == 2
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == ()
    assert follower.leader == leader.member_id


@in_a_loop
async def test_a_second_member_waits_until_the_first_has_joined_again() -> None:
    world = World()
    first = await world.member()
    second = await world.begin_join()
    await world.clock.advance(SESSION_MS // 2)
    assert not second.done()
    assert world.state() == "PreparingRebalance"
    again = await world.join(member_id=first.member_id)
    assert (await second).generation == again.generation == 2


@in_a_loop
async def test_a_rebalance_waits_for_somebody_who_was_given_an_id() -> None:
    world = World()
    first = await world.member()
    expected = await world.new_id()
    second = await world.begin_join()
    again = world.join(member_id=first.member_id)
    await settle()
    assert not again.done()
    third = world.join(member_id=expected)
    generations = {(await task).generation for task in (again, second, third)}
    assert generations == {2}


@pytest.mark.parametrize("group_id", ["", "x" * 40_000])
@in_a_loop
async def test_a_group_id_that_cannot_be_is_refused(group_id: str) -> None:
    answer = await World().groups.join(join_request(group_id, ""))
    assert answer.error is (ErrorCode.invalid_request if group_id else ErrorCode.invalid_group_id)


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001, -1])
@in_a_loop
async def test_a_session_timeout_outside_the_limits_is_refused(session_timeout_ms: int) -> None:
    world = World()
    answer = await world.groups.join(join_request("g", "", session_timeout_ms=session_timeout_ms))
    assert answer.error is ErrorCode.invalid_session_timeout
    assert world.state() is None


@in_a_loop
async def test_an_unknown_member_of_an_unknown_group_is_told_so() -> None:
    world = World()
    answer = await world.groups.join(join_request("g", "ghost"))
    assert (answer.error, answer.member_id) == (ErrorCode.unknown_member_id, "ghost")
    assert world.state() is None


@in_a_loop
async def test_an_unknown_member_of_a_known_group_is_told_so() -> None:
    world = World()
    await world.member()
    answer = await world.groups.join(join_request("g", "ghost"))
    assert answer.error is ErrorCode.unknown_member_id
    assert world.state() == "Stable"


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": ""},
        {"protocols": ()},
    ],
)
@in_a_loop
async def test_the_first_member_must_offer_a_protocol(options: dict[str, Any]) -> None:
    world = World()
    answer = await world.groups.join(join_request("g", "", **options))
    assert answer.error is ErrorCode.inconsistent_group_protocol
    assert world.state() is None, "a group that nobody could join is not left behind"


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": protocols("roundrobin")},
        {"protocols": ()},
    ],
)
@in_a_loop
async def test_a_member_with_no_protocol_in_common_is_refused(options: dict[str, Any]) -> None:
    world = World()
    await world.member()
    answer = await world.groups.join(join_request("g", "", **options))
    assert answer.error is ErrorCode.inconsistent_group_protocol
    assert world.state() == "Stable"


@in_a_loop
async def test_the_protocol_that_most_members_like_best_wins_among_those_that_all_know() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=1_000))
    wishes = [
        ("sticky", "range", "roundrobin"),
        ("roundrobin", "range"),
        ("range", "roundrobin"),
        ("range", "roundrobin"),
    ]
    tasks = [await world.begin_join(protocols=protocols(*names)) for names in wishes]
    await world.clock.advance(10_000)
    assert {(await task).protocol_name for task in tasks} == {"range"}


@in_a_loop
async def test_members_that_join_during_the_initial_delay_share_the_first_generation() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    first = await world.begin_join()
    await world.clock.advance(2_000)
    second = await world.begin_join()
    await world.clock.advance(2_000)
    assert not first.done(), "a member that joined during the delay prolongs it"
    await world.clock.advance(2_000)
    assert (await first).generation == (await second).generation == 1


@in_a_loop
async def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    first = await world.begin_join(rebalance_timeout_ms=7_000)
    for _ in range(3):
        await world.clock.advance(2_400)
        await world.begin_join(rebalance_timeout_ms=7_000)
    assert first.done()
    assert (await first).generation == 1


@in_a_loop
async def test_a_follower_that_joins_again_unchanged_while_stable_changes_nothing() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    again = await world.join(member_id=follower.member_id)
    assert (again.error, again.generation, again.leader) == (ErrorCode.none, 2, leader.member_id)
    assert world.state() == "Stable"
    assert (await world.sync(again)).assignment == b"for the follower"


@in_a_loop
async def test_the_leader_that_joins_again_while_stable_starts_a_rebalance() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    again = world.join(member_id=leader.member_id, reason="the topics changed")
    await settle()
    assert world.state() == "PreparingRebalance"
    other = world.join(member_id=follower.member_id)
    assert (await again).generation == (await other).generation == 3


@in_a_loop
async def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    again = world.join(member_id=follower.member_id, protocols=protocols("range", topics=("t", "u")))
    await settle()
    assert world.state() == "PreparingRebalance"
    other = await world.join(member_id=leader.member_id)
    assert (await again).generation == 3
    told = {member.member_id: member.metadata for member in other.members}
    assert told[follower.member_id] == protocols("range", topics=("t", "u"))[0].metadata


@in_a_loop
async def test_a_member_that_lost_its_answer_gets_it_again_while_the_rebalance_completes() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    assert await world.join(member_id=joined.member_id) == joined
    assert world.state() == "CompletingRebalance"


@in_a_loop
async def test_a_member_with_new_metadata_starts_over_while_the_rebalance_completes() -> None:
    world = World()
    task = await world.begin_join()
    await world.clock.advance(0)
    joined = await task
    again = await world.join(member_id=joined.member_id, protocols=protocols("range", topics=("u",)))
    assert again.generation == joined.generation + 1


@in_a_loop
async def test_the_same_member_joining_twice_has_its_first_request_answered() -> None:
    world = World()
    first = await world.member()
    waiting = await world.begin_join()
    member_id = [m.member_id for m in world.groups.describe("g").members.values()][-1]  # type: ignore[union-attr]
    repeated = world.join(member_id=member_id)
    await settle()
    assert (await waiting).error is ErrorCode.rebalance_in_progress
    await world.join(member_id=first.member_id)
    assert (await repeated).generation == 2


@in_a_loop
async def test_a_full_group_takes_no_further_member() -> None:
    world = World(settings=GroupSettings(max_size=2))
    await world.stable_pair()
    answer = await world.groups.join(join_request("g", ""))
    assert (answer.error, answer.member_id) == (ErrorCode.group_max_size_reached, "")
    assert world.state() == "Stable"


@in_a_loop
async def test_a_group_that_is_being_rebalanced_takes_as_many_as_have_room() -> None:
    world = World(settings=GroupSettings(max_size=2))
    first = await world.member()
    newcomers = [await world.begin_join(), await world.begin_join()]
    late = await world.join(member_id=first.member_id)
    assert late.error is ErrorCode.group_max_size_reached, "the last one to join again has to go"
    assert {(await task).generation for task in newcomers} == {2}


@in_a_loop
async def test_ids_are_not_handed_out_without_end() -> None:
    world = World(settings=GroupSettings(max_size=3))
    answers = [await world.groups.join(join_request("g", "")) for _ in range(5)]
    assert [answer.error for answer in answers] == [
        *[ErrorCode.member_id_required] * 3,
        *[ErrorCode.group_max_size_reached] * 2,
    ]


@pytest.mark.parametrize("field", ["client_id", "client_host", "instance_id", "protocol_type"])
@in_a_loop
async def test_what_could_not_be_stored_is_refused(field: str) -> None:
    answer = await World().groups.join(join_request("g", "", **{field: "x" * 33_000}))
    assert answer.error is ErrorCode.invalid_request


@in_a_loop
async def test_a_client_without_a_name_gets_a_usable_id() -> None:
    answer = await World().groups.join(join_request("g", "", client_id=""))
    assert answer.member_id == "member-id1"


def test_join_requests_compare_by_what_they_ask() -> None:
    assert isinstance(join_request("g", ""), JoinRequest)
    assert join_request("g", "") == join_request("g", "")


@in_a_loop
async def test_many_members_joining_at_once_end_in_one_generation() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=100))
    tasks = [await world.begin_join() for _ in range(200)]
    await world.clock.advance(1_000)
    answers = await asyncio.gather(*tasks)
    assert {answer.generation for answer in answers} == {1}
    assert len({answer.member_id for answer in answers}) == 200
    assert sum(bool(answer.members) for answer in answers) == 1
