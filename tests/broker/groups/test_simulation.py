"""Many members joining, leaving, dying and coming back, on a broker that is killed and a disk that fails."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.groups.doubles import assigned_partitions, in_a_loop, settle
from tests.broker.groups.simulation import (
    PARTITIONS,
    REBALANCE_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_MS,
    Simulation,
    disk_failure,
)

STEPS = 120
SEEDS = range(200)


async def disturb(simulation: Simulation, step: int) -> None:
    """One thing that happens in the life of a cluster, at random."""
    chance = simulation.random
    running = list(simulation.consumers)
    event = chance.choices(
        ["nothing", "arrival", "death", "departure", "comeback", "kill", "stop", "disk", "hang"],
        [30, 14, 8, 6, 6, 3, 2, 3, 2],
    )[0]
    if event == "arrival" and len(running) < 12:
        simulation.start(f"consumer{step}", static=chance.random() < 0.4)
    elif event in ("death", "departure", "comeback") and running:
        name = chance.choice(running)
        consumer = simulation.consumers.pop(name)
        await (consumer.leave() if event == "departure" else consumer.die())
        if event == "comeback":
            simulation.start(name, static=consumer.instance_id is not None)
    elif event in ("kill", "stop"):
        await simulation.restart_broker(cleanly=event == "stop")
    elif event == "disk":
        simulation.topic.refuses = disk_failure()
        await simulation.clock.advance(chance.randrange(3_000))
        simulation.topic.refuses = None
    elif event == "hang":
        simulation.topic.hold()
        await simulation.clock.advance(chance.randrange(3_000))
        await simulation.topic.release()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", SEEDS)
@in_a_loop
async def test_whatever_happens_no_partition_has_two_owners_and_no_offset_goes_back(seed: int) -> None:
    simulation = Simulation(seed)
    for step in range(STEPS):
        await disturb(simulation, step)
        await simulation.clock.advance(simulation.random.choice([0, 10, 100, 1_000, 3_000, 8_000]))
        simulation.check_offsets()
        simulation.check_generation()
    if not simulation.consumers:
        simulation.start("last", static=False)
    await simulation.clock.advance(2 * (SESSION_MS + REBALANCE_MS + REQUEST_TIMEOUT_MS))
    described = simulation.groups.describe(simulation.group)
    assert described is not None
    assert described.state.value == "Stable", f"seed {seed}"
    assert all(consumer.is_stable for consumer in simulation.consumers.values()), f"seed {seed}"
    alive = {consumer.member_id for consumer in simulation.consumers.values()}
    assert {member.member_id for member in described.members.values()} == alive, f"seed {seed}"
    owned = [each for member in described.members.values() for each in assigned_partitions(member.assignment)]
    assert sorted(owned) == [("t", partition) for partition in range(PARTITIONS)], f"seed {seed}"
    await end(simulation)


async def end(simulation: Simulation) -> None:
    """Everybody goes; nothing is left ticking or waiting."""
    for consumer in simulation.consumers.values():
        await consumer.die()
    await simulation.clock.advance(3 * (SESSION_MS + REBALANCE_MS))
    described = simulation.groups.describe(simulation.group)
    assert described is not None
    assert described.state.value == "Empty", f"seed {simulation.seed}"
    await settle()
    assert simulation.requests == set(), f"seed {simulation.seed}"
    before = dict(simulation.groups.offsets(simulation.group))
    await simulation.restart_broker(cleanly=False)
    assert simulation.groups.offsets(simulation.group) == before, (
        f"seed {simulation.seed}: memory was not what the log says"
    )
    assert await simulation.groups.delete_groups([simulation.group]) == {simulation.group: ErrorCode.none}
    assert simulation.groups.offsets(simulation.group) == {}
