"""The handlers of members' and operators' requests, in every version, from bytes to bytes."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.handlers import group_offsets, groups
from tests.broker.groups.doubles import SESSION_MS, assignment, in_a_loop, settle, subscription
from tests.broker.groups.wire import (
    DELETE,
    DESCRIBE,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    SYNC,
    VERSIONS,
    BrokerDouble,
    every_version,
    join_fields,
    sync_fields,
)


def test_there_is_a_handler_for_every_request_about_groups() -> None:
    assert set(groups.APIS) | set(group_offsets.APIS) == set(VERSIONS)


@every_version(FIND_COORDINATOR)
@in_a_loop
async def test_this_node_coordinates_every_group(version: int) -> None:
    answer = await BrokerDouble().ask(
        FIND_COORDINATOR, version, {"key": "g"} if version < 4 else {"coordinator_keys": ["g", "h"]}
    )
    places = [answer] if version < 4 else answer.coordinators
    assert [(place.node_id, place.host, place.port) for place in places] == [(1, "127.0.0.1", 9092)] * len(places)
    assert all(place.error_code is ErrorCode.none for place in places)
    assert version < 4 or [place.key for place in places] == ["g", "h"]


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize(
    ("key_type", "code"), [(1, ErrorCode.none), (2, ErrorCode.invalid_request), (9, ErrorCode.invalid_request)]
)
@in_a_loop
async def test_only_groups_and_transactions_have_a_coordinator(version: int, key_type: int, code: ErrorCode) -> None:
    fields = {"key_type": key_type, **({"key": "x"} if version < 4 else {"coordinator_keys": ["x"]})}
    answer = await BrokerDouble().ask(FIND_COORDINATOR, version, fields)
    place = answer if version < 4 else answer.coordinators[0]
    assert place.error_code is code
    assert place.node_id == (1 if code is ErrorCode.none else -1)


@every_version(JOIN)
@in_a_loop
async def test_a_member_joins(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member(version)
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [member.metadata for member in joined.members] == [subscription("t")]
    (member,) = broker.groups.describe("g").members.values()  # type: ignore[union-attr]
    assert (member.client_id, member.client_host) == ("client", "/10.1.2.3")


@every_version(JOIN)
@in_a_loop
async def test_a_refused_join_can_be_written_in_every_version(version: int) -> None:
    answer = await BrokerDouble().ask(JOIN, version, join_fields("", "m"))
    assert (answer.error_code, answer.member_id, answer.members) == (ErrorCode.invalid_group_id, "m", ())
    assert answer.protocol_name == ("" if version < 7 else None)


@pytest.mark.parametrize(("version", "expected_ms"), [(0, SESSION_MS), (1, 60_000)])
@in_a_loop
async def test_without_a_rebalance_timeout_the_session_timeout_counts(version: int, expected_ms: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member(version)
    await broker.ask(JOIN, 5, join_fields("g", "", protocols=[]))
    newcomer = broker.start(JOIN, 3, join_fields("g", ""))
    for _ in range(expected_ms // 5_000 - 1):
        await broker.world.clock.advance(5_000)
        await broker.ask(HEARTBEAT, 3, {"group_id": "g", "generation_id": 1, "member_id": joined.member_id})
    assert not newcomer.done()
    await broker.world.clock.advance(5_000 if version == 1 else SESSION_MS)
    assert (await newcomer).error_code is ErrorCode.none


@pytest.mark.parametrize("version", range(5, 10))
@in_a_loop
async def test_a_static_leader_is_told_to_skip_the_assignment_from_version_nine_on(version: int) -> None:
    broker = BrokerDouble()
    first = broker.start(JOIN, version, join_fields("g", "", group_instance_id="i"))
    await broker.world.clock.advance(0)
    joined = await first
    assert [member.group_instance_id for member in joined.members] == ["i"]
    await broker.ask(SYNC, 3, {**sync_fields(joined, {joined.member_id: b"mine"}), "group_instance_id": "i"})
    back = await broker.ask(JOIN, version, join_fields("g", "", group_instance_id="i"))
    assert getattr(back, "skip_assignment", False) is (version == 9)
    assert (back.leader == back.member_id) is (version == 9)


@every_version(SYNC)
@in_a_loop
async def test_an_assignment_is_handed_out(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member()
    answer = await broker.ask(SYNC, version, sync_fields(joined, {}))
    assert (answer.error_code, answer.assignment) == (ErrorCode.none, assignment(("t", 0)))
    assert version < 5 or (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@in_a_loop
async def test_from_version_five_on_a_sync_must_say_its_protocol() -> None:
    broker = BrokerDouble()
    joined = await broker.member()
    fields = {**sync_fields(joined, {}), "protocol_name": None}
    assert (await broker.ask(SYNC, 5, fields)).error_code is ErrorCode.inconsistent_group_protocol


@every_version(HEARTBEAT)
@in_a_loop
async def test_a_heartbeat_is_answered(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member()
    alive = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    assert (await broker.ask(HEARTBEAT, version, alive)).error_code is ErrorCode.none
    dead = {**alive, "generation_id": 7}
    assert (await broker.ask(HEARTBEAT, version, dead)).error_code is ErrorCode.illegal_generation


@every_version(LEAVE)
@in_a_loop
async def test_a_member_leaves(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member()

    def leaving(*members: str) -> dict[str, Any]:
        if version < 3:
            return {"group_id": "g", "member_id": members[0]}
        return {"group_id": "g", "members": [{"member_id": member, "reason": "done"} for member in members]}

    ghost = await broker.ask(LEAVE, version, leaving("ghost"))
    left = await broker.ask(LEAVE, version, leaving(joined.member_id))
    if version < 3:
        assert (ghost.error_code, left.error_code) == (ErrorCode.unknown_member_id, ErrorCode.none)
    else:
        assert ghost.error_code is left.error_code is ErrorCode.none
        assert [member.error_code for member in ghost.members] == [ErrorCode.unknown_member_id]
        assert [member.error_code for member in left.members] == [ErrorCode.none]
    nobody = await broker.ask(LEAVE, version, {**leaving("ghost"), "group_id": ""})
    assert nobody.error_code is ErrorCode.invalid_group_id
    assert broker.world.state() == "Empty"


@every_version(DESCRIBE)
@in_a_loop
async def test_groups_are_described(version: int) -> None:
    broker = BrokerDouble()
    joined = await broker.member()
    answer = await broker.ask(
        DESCRIBE, version, {"groups": ["g", "none"], "include_authorized_operations": version >= 3}
    )
    known, missing = answer.groups
    assert (known.group_id, known.group_state, known.protocol_type, known.protocol_data) == (
        "g",
        "Stable",
        "consumer",
        "range",
    )
    (member,) = known.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "client", "/10.1.2.3")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), assignment(("t", 0)))
    assert (missing.group_state, missing.members) == ("Dead", ())
    assert missing.error_code is (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
    assert version < 3 or known.authorized_operations == 3400


@pytest.mark.parametrize("version", range(3, 7))
@in_a_loop
async def test_rights_are_told_only_to_those_who_ask(version: int) -> None:
    broker = BrokerDouble()
    await broker.member()
    (group,) = (await broker.ask(DESCRIBE, version, {"groups": ["g"], "include_authorized_operations": False})).groups
    assert group.authorized_operations == -(2**31)


@every_version(LIST)
@in_a_loop
async def test_groups_are_listed(version: int) -> None:
    broker = BrokerDouble()
    await broker.member(group="busy")
    await broker.world.commit("idle", 1)
    answer = await broker.ask(LIST, version, {})
    rows = {(group.group_id, group.protocol_type) for group in answer.groups}
    assert rows == {("busy", "consumer"), ("idle", "")}
    assert version < 4 or {group.group_state for group in answer.groups} == {"Stable", "Empty"}
    assert version < 5 or {group.group_type for group in answer.groups} == {"classic"}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"states_filter": ["stable"]}, {"busy"}),
        ({"states_filter": ["Empty", " STABLE "]}, {"busy", "idle"}),
        ({"states_filter": ["Dead"]}, set()),
        ({"types_filter": ["Classic"]}, {"busy", "idle"}),
        ({"types_filter": ["consumer"]}, set()),
        ({"types_filter": ["classic"], "states_filter": ["empty"]}, {"idle"}),
    ],
)
@in_a_loop
async def test_groups_are_listed_by_state_and_type(filters: dict[str, list[str]], expected: set[str]) -> None:
    broker = BrokerDouble()
    await broker.member(group="busy")
    await broker.world.commit("idle", 1)
    answer = await broker.ask(LIST, 5, filters)
    assert {group.group_id for group in answer.groups} == expected


@every_version(DELETE)
@in_a_loop
async def test_groups_are_deleted(version: int) -> None:
    broker = BrokerDouble()
    await broker.member(group="busy")
    await broker.world.commit("idle", 1)
    answer = await broker.ask(DELETE, version, {"groups_names": ["busy", "idle", "none"]})
    assert [(row.group_id, row.error_code) for row in answer.results] == [
        ("busy", ErrorCode.non_empty_group),
        ("idle", ErrorCode.none),
        ("none", ErrorCode.group_id_not_found),
    ]


@in_a_loop
async def test_two_members_share_a_group_over_the_wire() -> None:
    broker = BrokerDouble()
    first = await broker.member(9)
    sent_away = await broker.ask(JOIN, 6, join_fields("g", ""))
    second = broker.start(JOIN, 6, join_fields("g", sent_away.member_id))
    await settle()
    alive = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
    assert (await broker.ask(HEARTBEAT, 4, alive)).error_code is ErrorCode.rebalance_in_progress
    leader = await broker.ask(JOIN, 9, join_fields("g", first.member_id))
    follower = await second
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    parts = {leader.member_id: assignment(("t", 0)), follower.member_id: assignment(("t", 1))}
    waiting = broker.start(SYNC, 5, sync_fields(follower, {}))
    await settle()
    assert (await broker.ask(SYNC, 5, sync_fields(leader, parts))).assignment == assignment(("t", 0))
    assert (await waiting).assignment == assignment(("t", 1))
