"""The servers that the clients are run against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.clients import confluent
from tests.clients.java_programs import JavaPrograms
from tests.clients.names import fresh
from tests.clients.shared_server import shared
from tests.clients.waiting import eventually
from tests.clients.wire import Connection
from tests.servers import START_TIMEOUT_S, ApacheKafka, Penstock, Server

# Both servers get these: groups start at once and may soon miss a member, and transactions left open are looked for
# often.
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="session")
def running_penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    arguments = [word for name, value in SETTINGS.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path_factory.mktemp("penstock"), *arguments) as server:
        yield server


@pytest.fixture
def penstock(running_penstock: Penstock) -> Iterator[Penstock]:
    """Our broker. The test that makes it end by itself is the one that fails."""
    if not running_penstock.process.is_alive():
        running_penstock.restart()
    yield running_penstock
    assert running_penstock.process.is_alive(), f"the broker ended:\n{running_penstock.process.last_words()}"


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Server]:
    """The reference. One for the whole run: the folders of all workers of pytest-xdist have the same parent."""
    own_folder = tmp_path_factory.getbasetemp()
    folder = (own_folder if worker_id == "master" else own_folder.parent) / "apache-kafka"
    with shared(folder, lambda: loaded_kafka(folder)) as server:
        yield server


@contextmanager
def loaded_kafka(folder: Path) -> Iterator[Server]:
    """Apache Kafka with its coordinators loaded: it makes their topics when they are first asked for."""
    with ApacheKafka(folder, SETTINGS) as server:
        with confluent.consumer(server) as reader:
            eventually("the group coordinator is loaded", lambda: is_coordinated(reader), START_TIMEOUT_S)
        confluent.producer(server, {"transactional.id": fresh("txn")}).init_transactions(confluent.TIMEOUT_S)
        yield server


def is_coordinated(reader: Consumer) -> bool:
    """Apache Kafka names a coordinator a moment before that knows that it is one."""
    try:
        reader.committed([TopicPartition("no-such-topic", 0)], timeout=confluent.TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return False
    return True


@pytest.fixture(scope="session")
def java_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPrograms]:
    """For tests of the group "java", which stay in one worker."""
    with JavaPrograms(tmp_path_factory.mktemp("java")) as programs:
        yield programs


@pytest.fixture(params=["penstock", "apache_kafka"])
def server(request: pytest.FixtureRequest) -> Server:
    """Our broker, and then the reference."""
    chosen: Server = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A bare connection to the server."""
    with Connection(server) as opened:
        yield opened
