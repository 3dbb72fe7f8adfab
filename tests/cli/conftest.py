"""A broker that all tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.cli.forked import ForkedCommand
from tests.cli.running import Command
from tests.clients.names import fresh
from tests.servers import Penstock


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("cli"), "--config", "group.initial.rebalance.delay.ms=0") as running:
        yield running


@pytest.fixture(scope="session")
def stream(server: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection


@pytest.fixture
def run(server: Penstock) -> Command:
    return ForkedCommand(f"kafka://{server.bootstrap}")


@pytest.fixture
def topic(stream: penstock.Connection) -> str:
    """A topic of one partition."""
    name = fresh()
    stream.create_topic(name)
    return name


@pytest.fixture
def numbers(stream: penstock.Connection, topic: str) -> str:
    """A topic of one partition, with the records 0 to 9."""
    for number in range(10):
        stream.send(topic, str(number), key=f"key-{number}")
    stream.flush(20)
    return topic
