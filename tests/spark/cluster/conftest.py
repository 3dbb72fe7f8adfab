"""A real standalone cluster, which the tests of this folder share: a master and two workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import JavaMissingError
from tests.spark.cluster.standalone import Standalone


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    try:
        with Standalone(tmp_path_factory.mktemp("cluster")) as started:
            yield started
    except JavaMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cluster(running_cluster: Standalone) -> Standalone:
    """All its workers live, and none has anything to do."""
    running_cluster.replace_the_dead()
    running_cluster.await_idle()
    return running_cluster
