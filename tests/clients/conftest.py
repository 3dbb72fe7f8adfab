"""The servers that the clients are run against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from tests.clients import confluent
from tests.clients.names import fresh
from tests.clients.wire import Connection
from tests.servers import ApacheKafka, Penstock, Server

# One group, so that one worker of pytest-xdist runs all tests of the reference and Apache Kafka starts once.
REFERENCE: Final = pytest.mark.xdist_group("apache-kafka")

# Both servers get these: groups start at once, and transactions left open are looked for often.
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
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
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """The reference, with its coordinators loaded: it makes their topics when they are first asked for."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), SETTINGS) as server:
        with confluent.consumer(server) as reader:
            reader.committed([TopicPartition("no-such-topic", 0)], timeout=confluent.TIMEOUT_S)
        confluent.producer(server, {"transactional.id": fresh("txn")}).init_transactions(confluent.TIMEOUT_S)
        yield server


@pytest.fixture(params=["penstock", pytest.param("apache_kafka", marks=REFERENCE)])
def server(request: pytest.FixtureRequest) -> Server:
    """Our broker, and then the reference."""
    chosen: Server = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A bare connection to the server."""
    with Connection(server) as opened:
        yield opened
