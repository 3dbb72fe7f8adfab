"""What the brokers of a cluster say about themselves, their leaderships and their replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.cluster.brokers import Cluster
from penstock.cluster.plans import Broker
from penstock.cluster.requests import Partition, Quorum, describe_partitions, describe_quorum
from penstock.errors import BrokerUnavailableError

TIMEOUT_S: Final = 2.0
RUNNING: Final = "running"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One row of `penstock cluster status`."""

    broker: int
    state: str
    """`running`, `not running`, `not answering`, `paused`, or `isolated from ...`."""
    address: str
    rack: str
    pid: int | None
    memory_bytes: int | None
    is_controller: bool
    leader_of: int | None
    """How many partitions it leads; None if no broker answers."""
    out_of_sync: int | None
    """How many of its replicas are not in sync; None if no broker answers."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All brokers, and all partitions that are not whole."""

    url: str
    folder: str
    controller: int | None
    controller_epoch: int | None
    brokers: list[BrokerStatus]
    without_leader: list[Partition] | None
    """None if no broker answers: partitions may or may not have leaders."""
    with_replicas_out_of_sync: list[Partition] | None
    """None if no broker answers: replicas may or may not be in sync."""

    @property
    def is_whole(self) -> bool:
        """Whether all brokers run, each partition has a leader, and all replicas are in sync. False if not known."""
        are_running = all(each.state == RUNNING for each in self.brokers)
        return are_running and self.without_leader == [] and self.with_replicas_out_of_sync == []


def status_of(cluster: Cluster) -> ClusterStatus:
    """The state of everything; what no broker answers is None."""
    quorum = ask(cluster, lambda broker: describe_quorum(broker.host, broker.controller_port, TIMEOUT_S))
    found = ask(cluster, lambda broker: describe_partitions(broker.host, broker.port, timeout_s=TIMEOUT_S))
    return ClusterStatus(
        url=cluster.url,
        folder=str(cluster.folder),
        controller=quorum.controller if quorum else None,
        controller_epoch=quorum.epoch if quorum else None,
        brokers=[_broker_status(cluster, number, quorum, found) for number in cluster.numbers],
        without_leader=None if found is None else [each for each in found if each.leader is None],
        with_replicas_out_of_sync=None if found is None else [each for each in found if each.out_of_sync],
    )


def ask(
    cluster: Cluster, question: Callable[[Broker], Answer | None], numbers: Sequence[int] | None = None
) -> Answer | None:
    """The answer of the first running broker that has one, of these or of all; isolated ones are asked last."""
    brokers = [cluster.broker(number) for number in numbers or cluster.numbers if cluster.is_running(number)]
    for broker in sorted(brokers, key=lambda each: each.isolated_from is not None):
        with contextlib.suppress(BrokerUnavailableError):
            answer = question(broker)
            if answer is not None:
                return answer
    return None


def _broker_status(
    cluster: Cluster, number: int, quorum: Quorum | None, partitions: list[Partition] | None
) -> BrokerStatus:
    broker = cluster.broker(number)
    running = cluster.is_running(number)
    if not running:
        state = "not running"
    elif broker.is_paused:
        state = "paused"
    elif broker.isolated_from is not None:
        state = f"isolated from {broker.isolated_from}"
    else:
        state = RUNNING if cluster.serves(number) else "not answering"
    return BrokerStatus(
        broker=number,
        state=state,
        address=broker.address,
        rack=broker.rack,
        pid=broker.pid if running else None,
        memory_bytes=cluster.memory_bytes(number),
        is_controller=quorum is not None and quorum.controller == number,
        leader_of=None if partitions is None else sum(1 for each in partitions if each.leader == number),
        out_of_sync=None if partitions is None else sum(1 for each in partitions if number in each.out_of_sync),
    )
