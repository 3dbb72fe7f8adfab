"""The servers that the clients are run against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.servers import ApacheKafka, Penstock, Server

# One group, so that one worker of pytest-xdist runs all tests of the reference and Apache Kafka starts once.
REFERENCE: Final = pytest.mark.xdist_group("apache-kafka")


@pytest.fixture(scope="session")
def running_penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("penstock")) as server:
        yield server


@pytest.fixture
def penstock(running_penstock: Penstock) -> Iterator[Penstock]:
    """Our broker. The test that makes it end by itself is the one that fails."""
    if not running_penstock.process.is_alive():
        running_penstock.restart()
    yield running_penstock
    assert running_penstock.process.is_alive(), f"the broker ended:\n{running_penstock.process.last_words()}"


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """The reference."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(params=["penstock", pytest.param("apache_kafka", marks=REFERENCE)])
def server(request: pytest.FixtureRequest) -> Server:
    """Our broker, and then the reference."""
    chosen: Server = request.getfixturevalue(request.param)
    return chosen
