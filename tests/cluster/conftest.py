"""A real Kafka of three brokers that the tests of this folder share. Each test leaves all brokers running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cluster.brokers import Cluster
from penstock.cluster.drills import temporary_cluster
from tests import real_parts


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    real_parts.java()
    with temporary_cluster(real_parts.kafka_jars()) as running:
        yield running
