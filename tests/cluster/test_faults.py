"""Brokers are killed, stopped and isolated, producers and consumers killed: every promise of the library holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from penstock.cluster.brokers import Cluster
from penstock.cluster.status import status_of
from tests.clients.waiting import eventually
from tests.cluster.fault_run import FaultRun
from tests.sampling import times
from tests.seeds import seed_of

pytestmark = pytest.mark.xdist_group("kafka-cluster")

FAULTS: Final = 20
"""In one run, after which everything is counted."""
SOAK_FAULTS: Final = 200
SESSION_S: Final = 3.0
TIMEOUT_S: Final = 60.0


@pytest.mark.timeout(3600)
def test_whatever_dies_nothing_acknowledged_is_lost_and_every_guarantee_holds(cluster: Cluster, tmp_path: Path) -> None:
    chance = random.Random(seed_of())
    for number in range(times(FAULTS, SOAK_FAULTS) // FAULTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = FaultRun(cluster, folder, chance.getrandbits(32), SESSION_S)
        try:
            outcome = run.play(FAULTS)
        finally:
            print(*run.told, sep="\n")
        print(outcome.table())
        assert not outcome.broken
        assert all(row.holds for row in outcome.rows), outcome.table()
        assert sum(outcome.faults.values()) >= FAULTS
        eventually("the cluster is whole", lambda: status_of(cluster).is_whole, TIMEOUT_S)
