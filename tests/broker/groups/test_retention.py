"""The end of offsets and groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.groups.messages import CommitRequest, LeavingMember, OffsetToCommit
from penstock.broker.groups.settings import GroupSettings
from penstock.errors import StorageError
from tests.broker.groups.doubles import World, commit_request, in_a_loop, join_request, protocols, settle

MINUTE_MS = 60_000
SETTINGS = GroupSettings(offsets_retention_minutes=10)
RETENTION_MS = 10 * MINUTE_MS


async def expire(world: World) -> int:
    return await world.groups.expire(world.clock.wall_ms())


@in_a_loop
async def test_offsets_of_consumers_without_a_group_expire_by_the_time_of_their_commit() -> None:
    world = World(settings=SETTINGS)
    await world.commit("g", 1, partition=0)
    await world.clock.advance(MINUTE_MS)
    await world.commit("g", 2, partition=1)
    await world.clock.advance(RETENTION_MS - MINUTE_MS - 1)
    assert await expire(world) == 0
    await world.clock.advance(1)
    assert await expire(world) == 1
    assert (world.committed("g", 0), world.committed("g", 1)) == (None, 2)
    await world.clock.advance(MINUTE_MS)
    assert await expire(world) == 1
    assert world.state() is None, "a group with nothing left is gone"
    world.restart()
    assert world.state() is None


@in_a_loop
async def test_offsets_of_a_group_expire_by_the_time_since_its_last_member_left() -> None:
    world = World(settings=SETTINGS)
    joined = await world.member()
    await world.commit("g", 1, member_id=joined.member_id, generation=1)
    for _ in range(RETENTION_MS // 5_000 * 2):
        await world.clock.advance(5_000)
        world.groups.heartbeat("g", joined.member_id, 1)
    assert await expire(world) == 0, "it has members"
    await world.groups.leave("g", [LeavingMember(joined.member_id)])
    await world.clock.advance(RETENTION_MS - 1)
    assert await expire(world) == 0
    world.restart()
    assert await expire(world) == 0
    await world.clock.advance(1)
    assert await expire(world) == 1
    assert world.state() is None


@in_a_loop
async def test_offsets_of_topics_that_a_group_no_longer_subscribes_to_expire_while_it_lives() -> None:
    world = World(settings=SETTINGS)
    joined = await world.member(session_timeout_ms=1_800_000)
    for topic in ("t", "u"):
        await world.commit("g", 1, topic=topic, member_id=joined.member_id, generation=1)
    await world.clock.advance(RETENTION_MS)
    assert await expire(world) == 1
    assert (world.committed("g", topic="t"), world.committed("g", topic="u")) == (1, None)
    assert world.state() == "Stable"


@pytest.mark.parametrize(
    "options",
    [{"protocol_type": "connect"}, {"protocols": (protocols("range")[0].__class__("range", b"\x00"),)}],
)
@in_a_loop
async def test_offsets_stay_while_a_group_lives_whose_subscriptions_cannot_be_known(options: dict[str, Any]) -> None:
    world = World(settings=SETTINGS)
    joined = await world.member(session_timeout_ms=1_800_000, **options)
    await world.commit("g", 1, topic="u", member_id=joined.member_id, generation=1)
    await world.clock.advance(RETENTION_MS * 2)
    assert await expire(world) == 0


@in_a_loop
async def test_an_expiry_that_the_client_asked_for_counts_instead() -> None:
    world = World(settings=SETTINGS)
    await world.commit("g", 1, partition=0, retention_ms=MINUTE_MS)
    await world.commit("g", 2, partition=1, retention_ms=RETENTION_MS * 2)
    world.restart()
    await world.clock.advance(MINUTE_MS)
    assert await expire(world) == 1
    await world.clock.advance(RETENTION_MS)
    assert await expire(world) == 0
    assert (world.committed("g", 0), world.committed("g", 1)) == (None, 2)


@in_a_loop
async def test_an_offset_does_not_expire_while_a_transaction_is_about_to_replace_it() -> None:
    world = World(settings=SETTINGS)
    await world.commit("g", 1)
    await world.groups.commit_in_transaction(1, 0, commit_request("g", 9))
    await world.clock.advance(RETENTION_MS)
    assert await expire(world) == 0
    world.end_transaction(1, True, "g")
    assert await expire(world) == 1, "its own commit is as old"


@in_a_loop
async def test_a_group_with_nothing_but_a_pending_offset_is_not_removed() -> None:
    world = World(settings=SETTINGS)
    await world.groups.commit_in_transaction(1, 0, commit_request("g", 9))
    await expire(world)
    assert world.state() == "Empty"


@in_a_loop
async def test_an_empty_group_without_offsets_is_removed() -> None:
    world = World()
    joined = await world.member()
    await world.groups.leave("g", [LeavingMember(joined.member_id)])
    assert await expire(world) == 0
    assert world.state() is None
    world.restart()
    assert world.state() is None


@in_a_loop
async def test_a_group_that_somebody_is_about_to_join_is_not_removed() -> None:
    world = World()
    member_id = await world.new_id()
    await expire(world)
    task = world.join(member_id=member_id)
    await world.clock.advance(0)
    assert (await task).error is ErrorCode.none


@in_a_loop
async def test_a_group_that_was_never_stored_is_removed_without_a_trace() -> None:
    world = World()
    await world.new_id()
    await world.clock.advance(100_000)
    await expire(world)
    assert world.state() is None
    assert world.topic.batches == []


@in_a_loop
async def test_a_commit_on_its_way_to_the_log_is_not_taken_back_by_expiry() -> None:
    world = World(settings=SETTINGS)
    await world.commit("g", 1)
    await world.clock.advance(RETENTION_MS)
    world.topic.hold()
    committing = asyncio.ensure_future(world.commit("g", 2))
    await settle()
    assert await expire(world) == 0
    await world.topic.release()
    await committing
    assert world.committed("g") == 2
    world.restart()
    assert world.committed("g") == 2


@in_a_loop
async def test_thousands_of_offsets_expire() -> None:
    world = World(settings=SETTINGS)
    for start in range(0, 5_000, 500):
        offsets = tuple(OffsetToCommit("t", partition, 1) for partition in range(start, start + 500))
        await world.groups.commit(CommitRequest(group_id="g", offsets=offsets))
    await world.commit("g", 1, partition=9_999, retention_ms=RETENTION_MS * 2)
    await world.clock.advance(RETENTION_MS)
    assert await expire(world) == 5_000
    assert list(world.groups.offsets("g")) == [("t", 9_999)]
    assert max(len(batch.records) for batch in world.topic.batches) <= 1_000


@in_a_loop
async def test_what_cannot_be_expired_now_is_expired_the_next_time() -> None:
    world = World(settings=SETTINGS)
    await world.commit("a", 1)
    await world.clock.advance(RETENTION_MS)
    world.topic.refuses = StorageError("the disk is full")
    assert await expire(world) == 0
    assert (world.state("a"), world.committed("a")) == ("Empty", 1)
    world.topic.refuses = None
    assert await expire(world) == 1


@in_a_loop
async def test_empty_groups_can_be_deleted_with_their_offsets() -> None:
    world = World()
    await world.member("busy")
    await world.commit("idle", 1)
    answers = await world.groups.delete_groups(["busy", "idle", "nobody", "idle"])
    assert answers == {
        "busy": ErrorCode.non_empty_group,
        "idle": ErrorCode.none,
        "nobody": ErrorCode.group_id_not_found,
    }
    assert (world.state("busy"), world.state("idle")) == ("Stable", None)
    world.restart()
    assert (world.state("busy"), world.state("idle"), world.committed("idle")) == ("Stable", None, None)


@in_a_loop
async def test_deleting_thousands_of_offsets_leaves_none() -> None:
    world = World()
    offsets = tuple(OffsetToCommit("t", partition, 1) for partition in range(2_500))
    await world.groups.commit(CommitRequest(group_id="g", offsets=offsets))
    assert await world.groups.delete_groups(["g"]) == {"g": ErrorCode.none}
    world.restart()
    assert world.state() is None


@in_a_loop
async def test_a_group_that_is_being_deleted_lets_nobody_in() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.hold()
    deleting = asyncio.ensure_future(world.groups.delete_groups(["g"]))
    await settle()
    assert world.state() is None
    assert (await world.groups.join(join_request("g", ""))).error is ErrorCode.coordinator_not_available
    with pytest.raises(Exception, match="coordinator_not_available"):
        await world.commit("g", 2)
    assert await world.groups.delete_groups(["g"]) == {"g": ErrorCode.group_id_not_found}
    assert (await world.groups.fetch("g", [("t", 0)]))["t", 0].offset == -1
    await world.topic.release()
    assert await deleting == {"g": ErrorCode.none}
    assert (await world.member()).generation == 1


@in_a_loop
async def test_a_deletion_that_cannot_be_stored_is_taken_back() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.refuses = StorageError("the disk is full")
    assert await world.groups.delete_groups(["g"]) == {"g": ErrorCode.not_coordinator}
    assert (world.state(), world.committed("g")) == ("Empty", 1)


@in_a_loop
async def test_a_deletion_takes_the_commits_along_that_came_before_it() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.hold()
    committing = asyncio.ensure_future(world.commit("g", 2, partition=1))
    await settle()
    deleting = asyncio.ensure_future(world.groups.delete_groups(["g"]))
    await settle()
    await world.topic.release()
    assert await committing is ErrorCode.none
    assert await deleting == {"g": ErrorCode.none}
    world.restart()
    assert (world.state(), world.committed("g", 1)) == (None, None)


@in_a_loop
async def test_a_deletion_whose_client_goes_away_is_finished_all_the_same() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.hold()
    deleting = asyncio.ensure_future(world.groups.delete_groups(["g"]))
    await settle()
    deleting.cancel()
    await settle()
    await world.topic.release()
    assert world.state() is None
    assert await world.commit("g", 5) is ErrorCode.none


@in_a_loop
async def test_the_offsets_of_a_deleted_topic_are_forgotten_in_every_group() -> None:
    world = World()
    joined = await world.member("a")
    await world.commit("a", 1, member_id=joined.member_id, generation=1)
    await world.commit("b", 2)
    await world.commit("b", 3, topic="u")
    await world.groups.commit_in_transaction(1, 0, commit_request("c", 9))
    world.topic.hold()
    late = asyncio.ensure_future(world.commit("d", 4))
    await settle()
    forgetting = asyncio.ensure_future(world.groups.forget_topic("t"))
    await settle()
    await world.topic.release()
    await forgetting
    await late
    world.end_transaction(1, True, "c")
    for _ in range(2):
        assert [world.committed(group) for group in "abcd"] == [None] * 4
        assert world.committed("b", topic="u") == 3
        world.restart()


@in_a_loop
async def test_a_deletion_whose_client_goes_away_before_it_is_written_is_finished_all_the_same() -> None:
    world = World()
    await world.commit("g", 1)
    world.topic.hold()
    committing = asyncio.ensure_future(world.commit("g", 2))
    await settle()
    deleting = asyncio.ensure_future(world.groups.delete_groups(["g"]))
    await settle()
    deleting.cancel()
    await settle()
    await world.topic.release()
    await committing
    assert world.committed("g") is None
    assert await world.commit("g", 5) is ErrorCode.none


@in_a_loop
async def test_a_group_with_members_stays_when_all_its_offsets_expire() -> None:
    world = World(settings=SETTINGS)
    joined = await world.member(session_timeout_ms=1_800_000)
    await world.commit("g", 1, topic="u", member_id=joined.member_id, generation=1)
    await world.clock.advance(RETENTION_MS)
    assert await expire(world) == 1
    assert await expire(world) == 0
    world.groups.heartbeat("g", joined.member_id, 1)
    assert world.state() == "Stable"


@in_a_loop
async def test_an_empty_group_without_offsets_is_removed_after_a_restart_too() -> None:
    world = World()
    joined = await world.member()
    await world.groups.leave("g", [LeavingMember(joined.member_id)])
    world.restart()
    assert world.state() == "Empty"
    await expire(world)
    world.restart()
    assert world.state() is None
