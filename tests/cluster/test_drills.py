"""Every drill holds what it claims, whichever broker plays which part."""

from __future__ import annotations

import pytest

from penstock.cluster.brokers import Cluster
from penstock.cluster.drills import DRILLS, run
from penstock.cluster.status import status_of
from tests.clients.waiting import eventually
from tests.seeds import seed_of

pytestmark = pytest.mark.xdist_group("kafka-cluster")
TIMEOUT_S = 60.0
SHORT = ("high-watermark", "controller-election", "rack-awareness", "reassignment")
"""Drills of a few seconds, which start no broker: `make test` samples these, and the soak runs all."""


@pytest.mark.sampled(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.soak) for name in DRILLS]
)
def test_a_drill_holds_what_it_claims_and_leaves_the_cluster_whole(cluster: Cluster, name: str) -> None:
    seed = seed_of()
    told: list[str] = []
    outcome = run(name, cluster, seed, told.append)
    assert outcome.claims
    assert outcome.holds, f"seed {seed}: {outcome}\n" + "\n".join(told)
    assert outcome.findings
    eventually("the cluster is whole", lambda: status_of(cluster).is_whole, TIMEOUT_S)


def test_every_drill_says_in_one_line_what_it_does() -> None:
    assert len(DRILLS) == 12
    for drill in DRILLS.values():
        assert drill.summary.endswith((".", "?"))
