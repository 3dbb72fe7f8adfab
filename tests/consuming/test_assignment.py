"""Who gets which partitions: balanced, sticky, and the same for everyone."""

from __future__ import annotations

import random

from penstock.consuming.lease_groups.held_partitions import assign
from tests.seeds import seed_of


def test_sizes_differ_by_one_at_most_and_nothing_is_given_twice() -> None:
    chance = random.Random(seed_of())
    for _ in range(300):
        partitions = range(chance.randrange(20))
        members = [f"m{number}" for number in range(chance.randrange(1, 8))]
        held = {partition: chance.choice([*members, "gone"]) for partition in partitions if chance.random() < 0.7}
        shares = assign(partitions, members, held)
        given = sorted(partition for share in shares.values() for partition in share)
        sizes = [len(share) for share in shares.values()]
        assert set(shares) == set(members)
        assert given == list(partitions)
        assert max(sizes) - min(sizes) <= 1


def test_as_few_partitions_move_as_balance_allows() -> None:
    chance = random.Random(seed_of())
    for _ in range(300):
        count, members = chance.randrange(1, 20), [f"m{number}" for number in range(chance.randrange(1, 8))]
        held = {partition: chance.choice(members) for partition in range(count)}
        shares = assign(range(count), members, held)
        moved = sum(partition not in shares[owner] for partition, owner in held.items())
        smallest, larger = divmod(count, len(members))
        sizes = sorted((list(held.values()).count(member) for member in members), reverse=True)
        room = [smallest + (place < larger) for place in range(len(members))]
        assert moved == sum(max(0, size - most) for size, most in zip(sizes, room, strict=True))


def test_a_balanced_group_stays_as_it_is() -> None:
    shares = assign(range(7), ["a", "b", "c"], {})
    for _ in range(3):
        held = {partition: member for member, share in shares.items() for partition in share}
        assert assign(range(6, -1, -1), ["c", "a", "b"], held) == shares


def test_a_group_without_members_gets_nothing() -> None:
    assert assign(range(3), [], {}) == {}
