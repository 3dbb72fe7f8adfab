"""What the brokers of a cluster say about themselves, their leaderships and their replicas."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.cluster.brokers import Cluster
from penstock.cluster.requests import Quorum, describe_quorum
from penstock.errors import BrokerUnavailableError

TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as the controller sees it."""

    topic: str
    number: int
    leader: int | None
    """None if no replica may lead it."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def out_of_sync(self) -> list[int]:
        return sorted(set(self.replicas) - set(self.in_sync))


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One row of `penstock cluster status`."""

    broker: int
    state: str
    """`running`, `not running`, `not answering`, or `isolated from ...`."""
    address: str
    rack: str
    pid: int | None
    memory_bytes: int | None
    is_controller: bool
    leader_of: int
    """How many partitions it leads."""
    out_of_sync: int
    """How many of its replicas are not in sync."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All brokers, and all partitions that are not whole."""

    url: str
    folder: str
    controller: int | None
    controller_epoch: int | None
    brokers: list[BrokerStatus]
    without_leader: list[Partition]
    with_replicas_out_of_sync: list[Partition]


def quorum_of(cluster: Cluster) -> Quorum | None:
    """The controllers, as the first broker that answers knows them; None if none knows an active one."""
    for number in cluster.running():
        broker = cluster.broker(number)
        with contextlib.suppress(BrokerUnavailableError):
            found = describe_quorum(broker.host, broker.port, timeout_s=2.0)
            if found is not None:
                return found
    return None


def partitions_of(admin: AdminClient, topic: str | None = None) -> list[Partition]:
    """The partitions of all topics, or of one. Raises KafkaException if no broker answers."""
    metadata = admin.list_topics(topic, timeout=TIMEOUT_S) if topic else admin.list_topics(timeout=TIMEOUT_S)
    return [
        Partition(
            name,
            partition.id,
            partition.leader if partition.leader >= 0 else None,
            tuple(partition.replicas),
            tuple(sorted(partition.isrs)),
        )
        for name, found in sorted(metadata.topics.items())
        for partition in sorted(found.partitions.values(), key=lambda each: each.id)
    ]


def status_of(cluster: Cluster) -> ClusterStatus:
    """The state of everything; what no broker answers is missing."""
    quorum = quorum_of(cluster)
    partitions: list[Partition] = []
    if cluster.running():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 3000})
        with contextlib.suppress(KafkaException):  # then no broker answers, which the states say
            partitions = partitions_of(admin)
    brokers = [_broker_status(cluster, number, quorum, partitions) for number in cluster.numbers]
    return ClusterStatus(
        url=cluster.url,
        folder=str(cluster.folder),
        controller=quorum.controller if quorum else None,
        controller_epoch=quorum.epoch if quorum else None,
        brokers=brokers,
        without_leader=[each for each in partitions if each.leader is None],
        with_replicas_out_of_sync=[each for each in partitions if each.out_of_sync],
    )


def _broker_status(cluster: Cluster, number: int, quorum: Quorum | None, partitions: list[Partition]) -> BrokerStatus:
    broker = cluster.broker(number)
    running = cluster.is_running(number)
    if not running:
        state = "not running"
    elif broker.isolated_from is not None:
        state = f"isolated from {broker.isolated_from}"
    else:
        state = "running" if cluster.serves(number) else "not answering"
    return BrokerStatus(
        broker=number,
        state=state,
        address=broker.address,
        rack=broker.rack,
        pid=broker.pid if running else None,
        memory_bytes=cluster.memory_bytes(number),
        is_controller=quorum is not None and quorum.controller == number,
        leader_of=sum(1 for each in partitions if each.leader == number),
        out_of_sync=sum(1 for each in partitions if number in each.out_of_sync),
    )
