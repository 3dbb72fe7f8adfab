"""A real Kafka of three brokers that the tests of this folder share, and that is whole when a test begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from penstock.cluster.brokers import Cluster
from penstock.cluster.drills.stage import Stage
from penstock.cluster.status import status_of
from penstock.cluster.temporary import temporary_cluster
from tests import real_parts

SETTINGS: Final = {
    "broker.heartbeat.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}
"""Dead members are noticed sooner than by default. Brokers are not: on a busy machine all would be elected again."""
WHOLE_S: Final = 300.0


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    real_parts.java()
    with temporary_cluster(real_parts.kafka_jars(), settings=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test breaks and, as it fails, does not mend, must not fail the tests behind it."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.state = Cluster.at(cluster.folder).state  # a command may have changed it
        if not status_of(cluster).is_whole:
            stage = Stage(cluster, 0, print)
            stage.make_whole(WHOLE_S)
            stage.close()
