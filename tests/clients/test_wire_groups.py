"""The classic group protocol, step by step: who is told what, and which step is refused with which code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.clients.wire import Connection
from tests.servers import Server

SUBSCRIPTION: Final = b"\0\0\0\0\0\0\0\0\0\0"


@pytest.fixture
def topic(server: Server, connection: Connection) -> str:
    name = confluent.create_topic(server)
    wire.wait_for_leader(connection, name)
    return name


@dataclass(frozen=True, slots=True)
class Place:
    """A member's place in one generation of a group."""

    group: str
    member_id: str
    generation: int

    @property
    def fields(self) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self.member_id, "generation_id": self.generation}


def join_fields(
    group: str, member_id: str = "", protocols: tuple[str, ...] = ("range",), **more: Any
) -> dict[str, Any]:
    named = [{"name": name, "metadata": SUBSCRIPTION} for name in protocols]
    times = {"session_timeout": 6000, "rebalance_timeout": 3000}
    return {"group_id": group, "member_id": member_id, "protocol_type": "consumer", "protocols": named, **times, **more}


def join(connection: Connection, group: str, member_id: str = "", **more: Any) -> Any:
    return connection.call("join_group", 9, **join_fields(group, member_id, **more))


def sync(connection: Connection, place: Place, assignments: dict[str, bytes] | None = None, **more: Any) -> Any:
    given = [{"member_id": member, "assignment": what} for member, what in (assignments or {}).items()]
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    return connection.call("sync_group", 5, **{**place.fields, **named, "assignments": given, **more})


def heartbeat(connection: Connection, place: Place) -> ErrorCode:
    code: ErrorCode = connection.call("heartbeat", 4, **place.fields).error_code
    return code


def found_group(connection: Connection, group: str | None = None, **more: Any) -> Place:
    """A stable group with one member."""
    group = group or fresh("group")
    asked = join(connection, group, **more)
    if asked.error_code is ErrorCode.member_id_required:
        asked = join(connection, group, asked.member_id, **more)
    assert asked.error_code is ErrorCode.none
    place = Place(group, asked.member_id, asked.generation_id)
    assert sync(connection, place, {asked.member_id: b"everything"}).assignment == b"everything"
    return place


def wait_for_rebalance(connection: Connection, place: Place, timeout_s: float = wire.TIMEOUT_S) -> None:
    """Beat until the member is told that it must join again."""

    def is_told() -> bool:
        code = heartbeat(connection, place)
        assert code in (ErrorCode.none, ErrorCode.rebalance_in_progress)
        return code is ErrorCode.rebalance_in_progress

    eventually("the member is told", is_told, timeout_s)


def commit(connection: Connection, group: str, member_id: str, generation: int, topic: str) -> ErrorCode:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    answer = connection.call(
        "offset_commit", 8, group_id=group, member_id=member_id, generation_id_or_member_epoch=generation, topics=topics
    )
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def test_a_member_asks_for_its_id_and_then_joins(connection: Connection) -> None:
    group = fresh("group")
    first = join(connection, group)
    assert (first.error_code, first.generation_id) == (ErrorCode.member_id_required, -1)
    assert first.member_id.startswith("wire-test-")
    joined = join(connection, group, first.member_id)
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.none, 1, first.member_id)
    assert (joined.protocol_type, joined.protocol_name, joined.skip_assignment) == ("consumer", "range", False)
    assert [(member.member_id, member.metadata) for member in joined.members] == [(first.member_id, SUBSCRIPTION)]


def test_the_leader_assigns_and_the_follower_is_told(server: Server, connection: Connection) -> None:
    leader = found_group(connection)
    with Connection(server) as other:
        newcomer = join(other, leader.group).member_id
        other.send("join_group", 9, **join_fields(leader.group, newcomer))
        # The leader learns of it by its heartbeat, and joins again: both are answered then.
        wait_for_rebalance(connection, leader)
        again = join(connection, leader.group, leader.member_id)
        assert (again.generation_id, again.leader) == (2, leader.member_id)
        assert {member.member_id for member in again.members} == {leader.member_id, newcomer}
        other.receive()
        follower = Place(leader.group, newcomer, 2)
        waiting = other.send(
            "sync_group", 5, **follower.fields, protocol_type="consumer", protocol_name="range", assignments=[]
        )
        given = {leader.member_id: b"one", newcomer: b"two"}
        assert sync(connection, Place(leader.group, leader.member_id, 2), given).assignment == b"one"
        frame = other.receive()
        assert frame.endswith(b"\x04two\0"), (waiting, frame)


def test_every_step_of_a_stranger_is_refused(connection: Connection, topic: str) -> None:
    place = found_group(connection)
    stranger = Place(place.group, "stranger", place.generation)
    assert heartbeat(connection, stranger) is ErrorCode.unknown_member_id
    assert sync(connection, stranger).error_code is ErrorCode.unknown_member_id
    assert join(connection, place.group, "stranger").error_code is ErrorCode.unknown_member_id
    assert commit(connection, place.group, "stranger", place.generation, topic) is ErrorCode.unknown_member_id
    left = connection.call("leave_group", 5, group_id=place.group, members=[{"member_id": "stranger"}])
    assert [member.error_code for member in left.members] == [ErrorCode.unknown_member_id]
    assert heartbeat(connection, place) is ErrorCode.none


def test_every_step_of_another_generation_is_refused(connection: Connection, topic: str) -> None:
    place = found_group(connection)
    stale = Place(place.group, place.member_id, place.generation + 5)
    assert heartbeat(connection, stale) is ErrorCode.illegal_generation
    assert sync(connection, stale).error_code is ErrorCode.illegal_generation
    assert commit(connection, place.group, place.member_id, stale.generation, topic) is ErrorCode.illegal_generation
    assert commit(connection, place.group, place.member_id, place.generation, topic) is ErrorCode.none


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"session_timeout": 10}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ("roundrobin",)}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ("roundrobin", "range")}, ErrorCode.member_id_required),
    ],
)
def test_a_newcomer_that_does_not_fit_is_refused(connection: Connection, more: dict[str, Any], code: ErrorCode) -> None:
    place = found_group(connection)
    assert join(connection, place.group, **more).error_code is code
    assert heartbeat(connection, place) is ErrorCode.none


def test_a_group_without_a_name_is_refused(connection: Connection) -> None:
    assert join(connection, "").error_code is ErrorCode.invalid_group_id
    assert heartbeat(connection, Place("", "x", 1)) is ErrorCode.invalid_group_id
    assert sync(connection, Place("", "x", 1)).error_code is ErrorCode.invalid_group_id


def test_a_sync_must_name_the_protocol_that_was_chosen(connection: Connection) -> None:
    place = found_group(connection)
    refused = ErrorCode.inconsistent_group_protocol
    assert sync(connection, place, protocol_name="sticky").error_code is refused
    assert sync(connection, place, protocol_type="connect").error_code is refused
    assert sync(connection, place).assignment == b"everything"


def test_the_protocol_that_all_know_is_chosen(server: Server, connection: Connection) -> None:
    preferred = ("range", "sticky", "roundrobin")
    leader = found_group(connection, protocols=preferred)
    with Connection(server) as other:
        newcomer = join(other, leader.group, protocols=("sticky", "roundrobin")).member_id
        other.send("join_group", 9, **join_fields(leader.group, newcomer, ("sticky", "roundrobin")))
        wait_for_rebalance(connection, leader)
        again = join(connection, leader.group, leader.member_id, protocols=preferred)
        assert again.protocol_name == "sticky"


def test_a_member_that_leaves_is_gone_and_its_group_is_empty(connection: Connection) -> None:
    place = found_group(connection)
    left = connection.call("leave_group", 5, group_id=place.group, members=[{"member_id": place.member_id}])
    assert (left.error_code, left.members[0].error_code) == (ErrorCode.none, ErrorCode.none)
    assert heartbeat(connection, place) is ErrorCode.unknown_member_id
    (described,) = connection.call("describe_groups", 6, groups=[place.group]).groups
    assert (described.group_state, described.members) == ("Empty", ())


def test_a_static_member_is_replaced_and_the_old_one_fenced(connection: Connection) -> None:
    group = fresh("group")
    place = found_group(connection, group, group_instance_id="one")
    again = join(connection, group, group_instance_id="one")
    assert again.error_code is ErrorCode.none
    assert again.member_id != place.member_id
    # Nothing has changed for the others, so there is no new generation; a leader is told not to assign again.
    assert (again.generation_id, again.skip_assignment) == (place.generation, True)
    fenced = connection.call("heartbeat", 4, **place.fields, group_instance_id="one")
    assert fenced.error_code is ErrorCode.fenced_instance_id
    renewed = connection.call("heartbeat", 4, **{**place.fields, "member_id": again.member_id}, group_instance_id="one")
    assert renewed.error_code is ErrorCode.none


def test_a_static_member_can_be_removed_by_its_name(connection: Connection) -> None:
    group = fresh("group")
    place = found_group(connection, group, group_instance_id="one")
    gone = [{"member_id": "", "group_instance_id": "one"}, {"member_id": "", "group_instance_id": "two"}]
    left = connection.call("leave_group", 5, group_id=group, members=gone)
    assert [member.error_code for member in left.members] == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert heartbeat(connection, place) is ErrorCode.unknown_member_id


@pytest.mark.parametrize(("generation", "code"), [(-1, ErrorCode.none), (3, ErrorCode.illegal_generation)])
def test_a_commit_to_a_group_that_nobody_joined(
    connection: Connection, topic: str, generation: int, code: ErrorCode
) -> None:
    assert commit(connection, fresh("group"), "", generation, topic) is code


def test_a_commit_for_a_topic_that_does_not_exist_is_refused(connection: Connection) -> None:
    group = fresh("group")
    assert commit(connection, group, "", -1, topic=fresh()) is ErrorCode.unknown_topic_or_partition


def offsets_of(connection: Connection, group: str, topics: list[dict[str, Any]] | None) -> Any:
    (answer,) = connection.call("offset_fetch", 9, groups=[{"group_id": group, "topics": topics}]).groups
    return answer


def test_offsets_that_were_never_committed_are_minus_one(connection: Connection) -> None:
    topic = fresh()
    answer = offsets_of(connection, fresh("group"), [{"name": topic, "partition_indexes": [0, 1]}])
    assert answer.error_code is ErrorCode.none
    rows = [(part.partition_index, part.committed_offset, part.error_code) for part in answer.topics[0].partitions]
    assert rows == [(0, -1, ErrorCode.none), (1, -1, ErrorCode.none)]
    assert offsets_of(connection, fresh("group"), None).topics == ()


def test_a_coordinator_is_found_for_groups_and_transactions_and_nothing_else(connection: Connection) -> None:
    for key_type in (0, 1):
        (found,) = connection.call("find_coordinator", 4, key_type=key_type, coordinator_keys=["x"]).coordinators
        assert (found.error_code, found.host) == (ErrorCode.none, "127.0.0.1")
    (refused,) = connection.call("find_coordinator", 4, key_type=9, coordinator_keys=["x"]).coordinators
    assert refused.error_code is ErrorCode.invalid_request
