"""No partition is owned twice, whatever happens, and in the end every partition is owned: by seeded simulation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.lease_groups.membership import FENCE
from tests.consuming.group_simulation import GROUP, TTL_S, World
from tests.sampling import times
from tests.seeds import seed_of

HISTORIES = 15
SOAK_HISTORIES = 600
EVENTS = 1200


def world_of(seed: int, partitions: int, members: int) -> World:
    world = World(MemoryCheckpoints(), seed, partitions)
    for number in range(members):
        world.join(f"m{number}")
    return world


def test_no_partition_is_owned_twice_and_all_are_owned_in_the_end() -> None:
    """Members join, leave, are killed and stopped, between and inside of any two requests, with the store away or its
    answers lost. At every record that is handled, and for every save, `World` checks that nobody else could."""
    seeds = random.Random(seed_of())
    histories = times(HISTORIES, SOAK_HISTORIES)
    handled = takeovers = 0
    for _ in range(histories):
        seed = seeds.getrandbits(32)
        print(f"history {seed}")
        world = world_of(seed, seeds.randrange(1, 9), 3)
        world.disturbance, world.fault_rate = 0.15, 0.02
        for _ in range(EVENTS):
            world.happen()
        world.calm()
        if not world.shares():
            world.join("last")
        world.run_for(4 * TTL_S)
        assert world.is_balanced(), world.shares()
        shares = world.shares()
        world.run_for(3 * TTL_S)
        assert world.shares() == shares, "a balanced group stays as it is"
        members = [lease for lease in world.store.leases(GROUP) if lease.name.startswith("member:")]
        assert len(members) == len(shares), "members that are gone are forgotten"
        for partition in world.partitions:
            world.check_saves(partition)
        handled += world.handled_count
        takeovers += world.takeovers
    assert handled > 1000 * histories
    assert takeovers > 5 * histories, "much must have changed hands, or nothing was shown"


def test_members_that_join_share_what_there_is() -> None:
    world = world_of(1, 7, 3)
    world.run_for(TTL_S)
    assert world.is_balanced()
    before = world.shares()
    world.join("m3")
    world.run_for(TTL_S)
    assert world.is_balanced()
    assert sum(len(before[name] - world.shares()[name]) for name in before) == 1, "no more moved than had to"


@pytest.mark.parametrize("seed", range(8))
def test_a_dead_member_is_replaced_after_its_time_and_not_before(seed: int) -> None:
    world = world_of(seed, 4, 2)
    world.run_for(TTL_S + seed)
    victim, heir = world.members
    died_s = world.clock.monotonic_s()
    last_beat_s = victim.membership.state.renewed_s
    victim.gone = True
    took_s = run_until(world, lambda: len(heir.holder.held) == 4)
    assert took_s - last_beat_s >= TTL_S
    assert took_s - died_s <= TTL_S * 4 / 3 + 0.2


def test_what_is_handed_back_is_taken_at_once() -> None:
    world = world_of(1, 4, 2)
    world.run_for(TTL_S)
    leaver, heir = world.members
    left_s = world.clock.monotonic_s()
    leaver.leave()
    took_s = run_until(world, lambda: len(heir.holder.held) == 4)
    assert took_s - left_s <= TTL_S / 3 + 0.2


def test_a_member_that_is_started_again_under_its_name_goes_on_at_once() -> None:
    world = world_of(1, 4, 2)
    world.run_for(TTL_S)
    victim, other = world.members
    had = set(victim.holder.held)
    victim.gone = True
    back = world.join(victim.name)
    world.run_for(0.2)
    assert set(back.holder.held) == had
    assert len(other.holder.held) == 2


def test_a_member_whose_handler_is_slow_keeps_its_partitions() -> None:
    world = world_of(1, 4, 2)
    world.run_for(TTL_S)
    slow, other = world.members
    had = set(slow.holder.held)
    for _ in range(500):
        world.clock.advance(0.1)
        slow.beat()
        other.beat()
        other.poll()
    slow.poll()
    assert set(slow.leases) == had


def test_a_member_that_cannot_reach_the_store_stops_before_others_take_over_and_comes_back() -> None:
    world = world_of(1, 2, 1)
    world.run_for(TTL_S)
    (member,) = world.members
    renewed_s = member.membership.state.renewed_s
    world.store_away = True
    run_until(world, lambda: world.clock.monotonic_s() - renewed_s > TTL_S * FENCE - 0.3)
    assert len(member.leases) == 2, "it keeps what it has for as long as nobody can take it"
    run_until(world, lambda: not member.leases)
    assert world.clock.monotonic_s() - renewed_s < TTL_S
    world.run_for(3 * TTL_S)
    world.store_away = False
    world.run_for(TTL_S)
    assert len(member.leases) == 2


def test_a_stopped_member_that_wakes_up_handles_nothing_more() -> None:
    world = world_of(1, 2, 1)
    world.run_for(TTL_S)
    (sleeper,) = world.members
    old = dict(sleeper.leases)
    sleeper.stopped_until_s = world.clock.monotonic_s() + 3 * TTL_S
    heir = world.join("heir")
    run_until(world, lambda: len(heir.holder.held) == 2)
    sleeper.stopped_until_s = float("-inf")
    assert not sleeper.holder.check(), "before it has heard anything, its clock tells"
    assert not sleeper.leases
    for partition in old:
        world.check_saves(partition)


def test_new_partitions_are_given_out() -> None:
    world = world_of(1, 2, 2)
    world.run_for(TTL_S)
    world.partitions = tuple(range(6))
    world.run_for(TTL_S)
    assert world.is_balanced()


def run_until(world: World, what: Callable[[], bool], attempts: int = 1000) -> float:
    for _ in range(attempts):
        if what():
            return world.clock.monotonic_s()
        world.run_for(0.1)
    raise AssertionError(f"not within {attempts / 10} s of the group's time: {world.shares()}")
