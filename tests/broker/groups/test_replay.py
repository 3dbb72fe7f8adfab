"""After a restart the coordinator knows what its topic says: nothing that was answered is lost, no damage counts."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.contracts import StoredBatch
from penstock.broker.groups.messages import LeavingMember
from penstock.broker.groups.records import offset_key
from penstock.broker.groups.settings import GroupSettings
from tests.broker.groups.doubles import (
    SESSION_MS,
    MemoryTopic,
    VirtualClock,
    World,
    assignment,
    commit_request,
    in_a_loop,
    settle,
)


@in_a_loop
async def test_members_of_a_stable_group_go_on_as_if_nothing_had_happened() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    await world.commit("g", 42, member_id=follower.member_id, generation=2)
    before = everything_about(world)
    world.restart()
    assert everything_about(world) == before
    world.groups.heartbeat("g", leader.member_id, 2)
    world.groups.heartbeat("g", follower.member_id, 2)
    assert await world.commit("g", 43, member_id=follower.member_id, generation=2) is ErrorCode.none
    assert (await world.sync(follower)).assignment == b"for the follower"
    assert world.state() == "Stable"


@in_a_loop
async def test_members_that_do_not_come_back_are_removed_after_their_session() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    world.restart()
    await world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", leader.member_id, 2)
    await world.clock.advance(1)
    described = world.groups.describe("g")
    assert described is not None
    assert [member.member_id for member in described.members.values()] == [leader.member_id]
    assert described.state.value == "PreparingRebalance"
    assert follower.generation == 2


@in_a_loop
async def test_a_new_member_joins_a_reloaded_group() -> None:
    world = World()
    first = await world.member()
    world.restart()
    second = await world.begin_join()
    again = await world.join(member_id=first.member_id)
    assert again.generation == (await second).generation == 2


@in_a_loop
async def test_a_group_that_is_larger_than_the_limit_allows_is_rebalanced_when_it_is_loaded() -> None:
    topic, clock = MemoryTopic(), VirtualClock()
    await World(topic, clock=clock).stable_pair()
    smaller = World(topic, GroupSettings(max_size=1), clock)
    assert smaller.state() == "PreparingRebalance"


@in_a_loop
async def test_a_group_in_the_middle_of_a_rebalance_comes_back_as_it_was_before() -> None:
    world = World()
    first = await world.member(assignment=b"mine")
    await world.begin_join()
    assert world.state() == "PreparingRebalance"
    world.restart()
    assert world.state() == "Stable"
    world.groups.heartbeat("g", first.member_id, 1)
    assert (await world.sync(first)).assignment == b"mine"


@in_a_loop
async def test_who_has_only_been_given_an_id_is_forgotten() -> None:
    world = World()
    member_id = await world.new_id()
    world.restart()
    assert (await world.join(member_id=member_id)).error is ErrorCode.unknown_member_id


@in_a_loop
async def test_the_generation_never_goes_back() -> None:
    world = World()
    generations = []
    for _ in range(5):
        joined = await world.member()
        generations.append(joined.generation)
        await world.groups.leave("g", [LeavingMember(joined.member_id)])
        world.restart()
    assert generations == sorted(set(generations))


def damaged(batch: StoredBatch, key: bytes, value: bytes | None) -> StoredBatch:
    return dataclasses.replace(batch, records=((key, value),))


@in_a_loop
async def test_damaged_and_unknown_records_are_reported_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.member()
    await world.commit("h", 1)
    (group_batch, offset_batch) = world.topic.batches
    group_key, group_value = group_batch.records[0]
    key, value = offset_batch.records[0]
    assert group_value is not None
    assert value is not None
    world.topic.batches += [
        damaged(offset_batch, key, value[:-1]),
        damaged(offset_batch, key[:-1], value),
        damaged(offset_batch, b"", b""),
        damaged(offset_batch, key, b"\x00\x63"),
        damaged(offset_batch, b"\x00\x03\x00\x01g", b"\x00\x00"),
        damaged(group_batch, group_key, group_value[: len(group_value) // 2]),
        damaged(offset_batch, offset_key("h", "t", 1), value),
    ]
    with caplog.at_level(logging.WARNING):
        world.restart()
    assert world.state("g") == "Stable"
    assert (world.committed("h", 0), world.committed("h", 1)) == (1, 1)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 6
    assert sum("damaged" in message for message in messages) == 5
    assert sum("ConsumerGroupMetadata" in message for message in messages) == 1
    assert all(
        f"partition {offset_batch.partition}" in m or f"partition {group_batch.partition}" in m for m in messages
    )


@in_a_loop
async def test_every_prefix_of_the_topic_can_be_loaded() -> None:
    world = World()
    leader, follower = await world.stable_pair()
    for offset in range(5):
        await world.commit("g", offset, member_id=leader.member_id, generation=2)
    await world.groups.commit_in_transaction(7, 0, commit_request("g", 50))
    world.end_transaction(7, True, "g")
    await world.groups.leave("g", [LeavingMember(leader.member_id), LeavingMember(follower.member_id)])
    await world.groups.delete_groups(["g"])
    whole = list(world.topic.batches)
    seen = []
    for length in range(len(whole) + 1):
        world.topic.batches = whole[:length]
        world.restart()
        seen.append((world.state(), world.committed("g")))
    assert seen == [
        (None, None),
        ("Stable", None),
        ("Stable", None),
        *(("Stable", offset) for offset in range(5)),
        ("Stable", 4),
        ("Stable", 50),
        ("Empty", 50),
        (None, None),
    ]


class Diary:
    """What clients have been answered, and so may rely on."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.begun: dict[int, set[int]] = {}
        """Offsets whose commit was asked for; each may have been written."""
        self.generation = 0
        self.assignments: dict[str, bytes] = {}
        self.deleted = False
        self.deletion_begun = False


async def live(world: World, diary: Diary) -> None:
    """A story that touches every kind of record."""

    async def commit(partition: int, offset: int, **options: Any) -> None:
        diary.begun.setdefault(partition, set()).add(offset)
        assert await world.commit("g", offset, partition, **options) is ErrorCode.none
        diary.committed[partition] = offset
        diary.begun[partition] = set()

    await commit(0, 1)
    first = await world.begin_join()
    await world.clock.advance(0)
    joined = await first
    mine: dict[str, Any] = {"member_id": joined.member_id, "generation": joined.generation}
    answer = await world.sync(joined, {joined.member_id: assignment(("t", 0))})
    diary.generation, diary.assignments = joined.generation, {joined.member_id: answer.assignment}
    await asyncio.gather(commit(0, 2, **mine), commit(1, 5, **mine))
    second = world.join(instance_id="static")
    await settle()
    leader = await world.join(member_id=joined.member_id)
    follower = await second
    parts = {leader.member_id: assignment(("t", 0)), follower.member_id: assignment(("t", 1))}
    syncing = world.sync(follower, instance_id="static")
    answers = {leader.member_id: (await world.sync(leader, parts)).assignment}
    answers[follower.member_id] = (await syncing).assignment
    diary.generation, diary.assignments = leader.generation, answers
    back = await world.join(instance_id="static")
    assert back.error is ErrorCode.none
    del diary.assignments[follower.member_id]
    diary.assignments[back.member_id] = (await world.sync(back, instance_id="static")).assignment
    mine = {"member_id": leader.member_id, "generation": leader.generation}
    await commit(0, 3, **mine)
    diary.begun.setdefault(2, set()).add(70)
    await world.groups.commit_in_transaction(9, 0, commit_request("g", 70, 2, **mine))
    world.end_transaction(9, True, "g")
    diary.committed[2] = 70
    diary.assignments = {}
    await world.groups.leave("g", [LeavingMember(leader.member_id), LeavingMember("", "static")])
    diary.generation = leader.generation + 1
    diary.deletion_begun = True
    assert await world.groups.delete_groups(["g"]) == {"g": ErrorCode.none}
    diary.deleted = True


def everything_about(world: World) -> tuple[object, ...]:
    """The state of group g, apart from the time of its last change."""
    group = world.groups.describe("g")
    assert group is not None
    assert group.protocol_name is not None
    members = [
        (each.member_id, each.instance_id, each.client_id, each.client_host, each.protocols, each.assignment)
        for each in group.members.values()
    ]
    return group.state, group.generation, group.protocol_type, group.protocol_name, group.leader_id, members


def check_survivors(world: World, diary: Diary, where: str) -> None:
    described = world.groups.describe("g")
    if diary.deleted:
        assert described is None, where
        return
    for partition, offset in diary.committed.items():
        found = world.committed("g", partition)
        allowed = {offset, *diary.begun.get(partition, ())}
        assert found in allowed or (found is None and diary.deletion_begun), f"{where}: partition {partition}"
    for partition, offsets in diary.begun.items():
        assert world.committed("g", partition) in {None, diary.committed.get(partition), *offsets}, where
    if diary.generation and not diary.deletion_begun:
        assert described is not None, where
        assert described.generation >= diary.generation, where
        assigned = {member.member_id: member.assignment for member in described.members.values()}
        if described.generation == diary.generation:
            for member_id, bytes_ in diary.assignments.items():
                replaced = member_id not in assigned and member_id.startswith("static")
                assert replaced or assigned[member_id] == bytes_, where


def appends_of_a_whole_life() -> int:
    async def main() -> int:
        world = World()
        await live(world, Diary())
        return world.topic.appends

    return asyncio.run(main())


@pytest.mark.parametrize("behind", [False, True])
def test_a_kill_at_any_append_loses_nothing_that_was_answered(behind: bool) -> None:
    appends = appends_of_a_whole_life()
    assert appends >= 9
    for at, seed in itertools.product(range(1, appends + 1), range(3)):

        async def main(at: int = at, seed: int = seed) -> None:
            world, diary = World(seed=seed), Diary()
            world.topic.fails_at, world.topic.fails_behind = at, behind
            story = asyncio.ensure_future(live(world, diary))
            for _ in range(20):
                await settle()
            assert world.topic.is_off, f"append {at} of {appends}, seed {seed}"
            story.cancel()
            await asyncio.wait([story])
            world.restart()
            check_survivors(world, diary, f"killed {'behind' if behind else 'before'} append {at}, seed {seed}")
            joined = await world.member("afterwards")
            assert joined.error is ErrorCode.none

        asyncio.run(main())
