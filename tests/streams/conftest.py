"""A broker that all tests of this folder share, and folders for those that start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.clients.names import fresh
from tests.servers import Penstock
from tests.streams.embedded import stop_broker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("streams"), "--config", "group.initial.rebalance.delay.ms=0") as running:
        yield running


@pytest.fixture(scope="session")
def shared_stream(server: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection


@pytest.fixture
def stream(shared_stream: penstock.Connection) -> penstock.Connection:
    """A connection that is shared: a test that closes it makes its own."""
    return shared_stream


@pytest.fixture
def topic(stream: penstock.Connection) -> str:
    """A topic of one partition."""
    name = fresh()
    stream.create_topic(name)
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder that does not exist yet. A broker that is started for it ends with the test."""
    data = tmp_path / "data"
    yield data
    stop_broker(data)
