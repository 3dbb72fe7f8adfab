"""Three brokers keep the promises of a stream, of checkpoints, of dead letters and of a queue, also with one away.

An outage is one of the cluster: `kill` hits the leader of the case's topic; a network that is cut, or does not answer,
is that of all brokers to their clients.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from typing import Final

import pytest

import penstock
from penstock.abc import Stream, TopicStream
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.cluster.brokers import Cluster
from penstock.cluster.requests import describe_partitions
from penstock.cluster.status import ask, status_of
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.errors import TopicExistsError
from penstock.model.clock import SystemClock
from penstock.testing import conformance
from penstock.testing.conformance.checkpoints import checkpoint_store
from penstock.testing.conformance.letters import dead_letters
from tests import real_parts, system_table
from tests.checkpoints import test_kafka_conformance as kafka_store
from tests.clients.waiting import eventually
from tests.dead_letters import openings
from tests.streams import test_kafka_conformance as kafka_stream

pytestmark = pytest.mark.xdist_group("kafka-cluster")

SYSTEM: Final = "Apache Kafka cluster"
WHOLE_S: Final = 90.0
VISIBILITY_S: Final = 2.0
DELIVERY_S: Final = 30.0
"""How long sending to brokers that do not answer may take: the suite waits for 90 s."""


class Links:
    """The network between all brokers and their clients, with the methods of a `TcpProxy`."""

    connections = 0
    """Nobody stands between the brokers and their clients who could count them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cut(self) -> None:
        for number in self._cluster.numbers:
            self._cluster.isolate(number, "clients")

    freeze = cut

    def heal(self) -> None:
        for number in self._cluster.numbers:
            self._cluster.heal(number)

    strand = heal
    """The links come back with the connections that they had: they cannot be left half-open."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "delay_s":
            raise unittest.SkipTest("does not apply: answers of a cluster cannot be delayed")
        super().__setattr__(name, value)


class Outage:
    """The cluster, of which the leader of the topic in use is killed."""

    topic = ""
    """That of the case that runs now."""

    def __init__(self, cluster: Cluster) -> None:
        self.proxy = Links(cluster)
        self._cluster = cluster
        self._killed = 0

    def kill(self) -> None:
        found = ask(self._cluster, lambda broker: describe_partitions(broker.host, broker.port, [self.topic]) or None)
        assert found is not None
        self._killed = found[0].leader or self._cluster.numbers[0]
        self._cluster.kill(self._killed)

    def restart(self) -> None:
        self._cluster.start(self._killed)


_running: list[Outage] = []
"""The outage of the class that is tested now."""


def outage() -> Outage:
    return _running[-1]


@pytest.fixture(scope="class")
def whole_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Note it for the table of systems, and leave it whole."""
    with penstock.connect(cluster.url) as stream:
        system_table.met(SYSTEM, f"Apache Kafka {real_parts.kafka_version()}, 3 brokers", stream.features)
    _running.append(Outage(cluster))
    yield cluster
    _running.pop()
    eventually("the cluster is whole", lambda: status_of(cluster).is_whole, WHOLE_S)


@pytest.mark.system(SYSTEM)
@pytest.mark.timeout(300)
@pytest.mark.sampled(5, among="streams on a cluster")
class TestStream(
    conformance.stream(kafka_stream.open_kafka, expire=kafka_stream.delete_records, outage=outage)  # type: ignore[misc]
):
    def opened(self, streams: Stream, topic: str) -> TopicStream:
        Outage.topic = topic
        return super().opened(streams, topic)  # type: ignore[no-any-return]

    @pytest.fixture(autouse=True)
    def _brokers(self, whole_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kafka_stream.BOOTSTRAP, whole_cluster.bootstrap)


@pytest.mark.timeout(300)
@pytest.mark.sampled(3, among="checkpoints on a cluster")
class TestCheckpoints(
    checkpoint_store(kafka_store.open_kafka_store, spoil=kafka_store.spoil_kafka)  # type: ignore[misc]
):
    @pytest.fixture(autouse=True)
    def _brokers(self, whole_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kafka_store.BOOTSTRAP, whole_cluster.bootstrap)


@pytest.fixture(scope="class")
def letters_on_the_cluster(whole_cluster: Cluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(openings.URL_VARIABLE, whole_cluster.url)
        yield
        openings.hang_up()


@pytest.mark.timeout(300)
@pytest.mark.sampled(2, among="dead letters on a cluster")
@pytest.mark.usefixtures("letters_on_the_cluster")
class TestDeadLetters(dead_letters(openings.on_the_log)):  # type: ignore[misc]
    pass


class QueueOnKafka(StreamQueue):
    """A topic as a queue, with its checkpoints in Kafka; owns its connection and its store."""

    def __init__(self) -> None:
        self._connection = kafka_stream.open_kafka(delivery_timeout_s=DELIVERY_S)
        with contextlib.suppress(TopicExistsError):  # another case was first
            self._connection.create_topic("queue")
        Outage.topic = "queue"
        self._checkpoints = KafkaCheckpoints(self._connection)
        stream = self._connection.open_topic("queue")
        super().__init__(
            stream, self._checkpoints, "workers", member="w", visibility_s=VISIBILITY_S, clock=SystemClock()
        )

    def close(self) -> None:
        super().close()
        self._checkpoints.close()
        self._connection.close()


@pytest.mark.timeout(300)
@pytest.mark.sampled(2, among="queues on a cluster")
class TestQueue(
    conformance.queue(QueueOnKafka, visibility_s=VISIBILITY_S, outage=outage)  # type: ignore[misc]
):
    @pytest.fixture(autouse=True)
    def _brokers(self, whole_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kafka_stream.BOOTSTRAP, whole_cluster.bootstrap)
