"""Fifty members and five hundred partitions, by leases and by Kafka's groups: they settle, and divide the work evenly.

`python -m benchmarks groups` does the same with a thousand members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from benchmarks.group_sizes import STARTING_S, Outcome, by_kafka, by_leases
from tests.seeds import seed_of

MEMBERS = 50
PARTITIONS = 500


@pytest.mark.parametrize("simulate", [by_leases, by_kafka])
def test_every_partition_has_one_owner_after_starts_deaths_and_joins(simulate: Callable[..., Outcome]) -> None:
    seed = seed_of()
    outcome = simulate(MEMBERS, PARTITIONS, seed)
    held = Counter(partition for share in outcome.shares for partition in share)
    assert held == Counter(range(PARTITIONS)), f"seed {seed}: some have no owner, or two"
    assert max(outcome.sizes) - min(outcome.sizes) <= 1, f"seed {seed}"
    assert len(outcome.shares) == MEMBERS, f"seed {seed}"
    busiest, hottest = outcome.busiest(seed)
    assert busiest < 2.5 * max(1.0, hottest), f"seed {seed}: chance alone spreads busy partitions better"
    dead = PARTITIONS // 10
    assert outcome["deaths"].moved <= 2 * dead, f"seed {seed}: partitions of the living moved, too"
    assert outcome["joins"].moved <= 2 * dead, f"seed {seed}: more moved than the new members needed"
    assert outcome["steady"].moved == 0, f"seed {seed}"


def test_leases_settle_soon_and_leave_the_store_alone_afterwards() -> None:
    seed = seed_of()
    outcome = by_leases(MEMBERS, PARTITIONS, seed)
    assert outcome["start"].stable_s <= STARTING_S + 20, f"seed {seed}"
    assert outcome["deaths"].stable_s <= 30, f"seed {seed}: a ttl of 10 s, and the moves"
    assert outcome["joins"].stable_s <= 20, f"seed {seed}"
    steady = outcome["steady"]
    assert steady.operations_per_s < 2 * MEMBERS, f"seed {seed}: a heartbeat and a look each 3 s, for each member"
    # All leases of all partitions in every look would be 15,000 and more.
    assert steady.leases_per_s < 8_000, f"seed {seed}: the leases of partitions are read only while they move"
