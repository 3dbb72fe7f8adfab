"""A broker that all tests of this folder share, and names for topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.clients.conftest import apache_kafka as apache_kafka
from tests.clients.names import fresh
from tests.servers import Penstock


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("producing"), "--config", "group.initial.rebalance.delay.ms=0") as running:
        yield running


@pytest.fixture(scope="session")
def url(server: Penstock) -> str:
    return f"kafka://{server.bootstrap}"


@pytest.fixture(scope="session")
def stream(url: str) -> Iterator[penstock.Connection]:
    with penstock.connect(url) as connection:
        yield connection


@pytest.fixture
def topic(stream: penstock.Connection) -> str:
    """A topic of one partition."""
    name = fresh()
    stream.create_topic(name)
    return name
