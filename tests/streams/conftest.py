"""A broker that all tests of this folder share, and folders for those that start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.clients.conftest import loaded_kafka
from tests.clients.names import fresh
from tests.clients.shared_server import shared
from tests.servers import Penstock, Server
from tests.streams.embedded import stop_broker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    settings = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500")
    arguments = [word for setting in settings for word in ("--config", setting)]
    with Penstock(tmp_path_factory.mktemp("streams"), *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def shared_stream(server: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        yield connection


@pytest.fixture
def stream(shared_stream: penstock.Connection) -> penstock.Connection:
    """A connection that is shared: a test that closes it makes its own."""
    return shared_stream


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Server]:
    """The reference: the one that the tests of clients use, too."""
    own_folder = tmp_path_factory.getbasetemp()
    folder = (own_folder if worker_id == "master" else own_folder.parent) / "apache-kafka"
    with shared(folder, lambda: loaded_kafka(folder)) as running:
        yield running


@pytest.fixture(params=["embedded log", "Apache Kafka"])
def either(request: pytest.FixtureRequest) -> Iterator[penstock.Connection]:
    """A connection to our broker, and then to the reference, for what hangs on how Kafka behaves."""
    chosen: Server = request.getfixturevalue("server" if request.param == "embedded log" else "apache_kafka")
    with penstock.connect(f"kafka://{chosen.bootstrap}") as connection:
        yield connection


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
