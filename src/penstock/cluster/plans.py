"""`Plan`: how a cluster is set up, and which settings of Kafka follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.cluster import networks
from penstock.cluster.networks import CutOff, Network
from penstock.errors import ClusterError

DEFAULT_PORT: Final = 19_092
CONTROLLER_PORTS: Final = 100
"""A broker's controller listens this many ports above its broker."""
PROXIED_PORTS: Final = 200
"""A broker behind proxies listens this many ports above them."""
PEER_PORTS: Final = 400
"""The listener for its peers has a proxy this many ports above its first one."""
MOST_BROKERS: Final = 9
FEWEST_HEAP_MB: Final = 64
FIRST_HEAP_MB: Final = 128
"""With how much of the heap a broker begins."""

SETTINGS: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "6",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
}
"""What differs from Kafka's defaults: dead brokers are noticed sooner, and everything is small."""

_LISTENERS: Final = "brokers must reach each other, and `isolate` must know how: choose --network and --port"
_NUMBERS: Final = "the command numbers the brokers: choose how many with --brokers"
_FOLDERS: Final = "the data is in the folder of the cluster: choose it with --folder"
OWNED: Final[Mapping[str, str]] = {
    "listeners": _LISTENERS,
    "advertised.listeners": _LISTENERS,
    "listener.security.protocol.map": _LISTENERS,
    "inter.broker.listener.name": _LISTENERS,
    "security.inter.broker.protocol": _LISTENERS,
    "controller.listener.names": _LISTENERS,
    "controller.quorum.voters": _LISTENERS,
    "controller.quorum.bootstrap.servers": _LISTENERS,
    "process.roles": "every broker is also a controller here",
    "node.id": _NUMBERS,
    "broker.id": _NUMBERS,
    "broker.rack": "the brokers have different racks: choose them with --racks",
    "log.dir": _FOLDERS,
    "log.dirs": _FOLDERS,
    "metadata.log.dir": _FOLDERS,
}
"""Settings that the command decides, and what to do instead of setting them."""

REPLICATION_FACTOR: Final = "default.replication.factor"
MIN_IN_SYNC: Final = "min.insync.replicas"
REPLICATED: Final = (
    (REPLICATION_FACTOR, MIN_IN_SYNC),
    ("offsets.topic.replication.factor", MIN_IN_SYNC),
    ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    ("share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr"),
)
"""How many replicas partitions have, and how many of them a write needs: of topics, and of Kafka's own state."""


class Broker(msgspec.Struct):
    """One broker of a cluster."""

    number: int
    host: str
    port: int
    controller_port: int
    rack: str
    own_port: int = 0
    """Where its process listens, behind the proxy at `port`; 0 without proxies."""
    own_controller_port: int = 0
    peer_port: int = 0
    """Behind proxies, where other brokers connect, so that few connections need a look at where they come from."""
    own_peer_port: int = 0
    pid: int = 0
    isolated_from: CutOff | None = None
    is_paused: bool = False
    """Whether its process was told to stand still (SIGSTOP), and not yet to go on."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Plan(msgspec.Struct, frozen=True):
    """How a cluster is set up."""

    brokers: int = 3
    replication_factor: int = 3
    min_insync_replicas: int = 2
    port: int = DEFAULT_PORT
    network: Network = "loopback"
    host: str = networks.LOOPBACK
    """Where brokers on `loopback` listen instead, for clients on a network of their own. They ask for no password."""
    heap_mb: int = 160
    racks: tuple[str, ...] = ("a", "b", "c")
    """The racks of the brokers, in turn."""
    settings: Mapping[str, str] = {}
    """Settings of Kafka (`--config`), which have priority over what the other fields say."""

    def check(self) -> None:
        """Raise ClusterError for a plan that cannot work."""
        if not 1 <= self.brokers <= MOST_BROKERS:
            raise ClusterError(f"--brokers must be from 1 to {MOST_BROKERS}, not {self.brokers}")
        if self.heap_mb < FEWEST_HEAP_MB:
            raise ClusterError(f"--heap-mb must be at least {FEWEST_HEAP_MB}, not {self.heap_mb}")
        for name in self.settings:
            if name in OWNED:
                raise ClusterError(f"--config {name} cannot be used: {OWNED[name]}")
        for replicas, in_sync in REPLICATED:
            self._check_replicas(replicas, in_sync)
        last = 65_535 - CONTROLLER_PORTS - self.brokers - (PEER_PORTS if self.network == "proxies" else 0)
        if not 1 <= self.port <= last:
            raise ClusterError(f"--port must be from 1 to {last}, not {self.port}")

    def _check_replicas(self, replicas: str, in_sync: str) -> None:
        factor, needed = self._number(replicas), self._number(in_sync)
        if factor > self.brokers:
            raise ClusterError(
                f"{self.brokers} brokers cannot hold {factor} replicas of a partition{self._set_by(replicas)}: start "
                "more brokers (--brokers), or lower --replication-factor"
            )
        if needed > factor:
            raise ClusterError(
                f"{in_sync} {needed}{self._set_by(in_sync)} cannot be met by {factor} replicas"
                f"{self._set_by(replicas)}: all writes with acks=all would be refused. Lower --min-insync-replicas, or "
                "raise --replication-factor"
            )

    def _number(self, name: str) -> int:
        value = self.kafka_settings()[name]
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise ClusterError(f"{name}={value} must be an integer >= 1{self._set_by(name)}")
        return int(value)

    def _set_by(self, name: str) -> str:
        return f" (--config {name})" if name in self.settings else ""

    def kafka_settings(self) -> dict[str, str]:
        """The settings that all brokers have in common."""
        replicas, in_sync = str(self.replication_factor), str(self.min_insync_replicas)
        return {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            REPLICATION_FACTOR: replicas,
            MIN_IN_SYNC: in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            **SETTINGS,
            **self.settings,
        }

    def ports(self) -> list[int]:
        """All ports of loopback that it needs."""
        above = [0, CONTROLLER_PORTS]
        if self.network == "proxies":
            above += [PROXIED_PORTS, PROXIED_PORTS + CONTROLLER_PORTS, PEER_PORTS, PEER_PORTS + PROXIED_PORTS // 2]
        return [self.port + each + step for each in above for step in range(self.brokers)]

    def broker(self, subnet: int, number: int) -> Broker:
        """A broker that was never started."""
        port = self.port + number - 1
        rack = self.racks[(number - 1) % len(self.racks)]
        host = self.host if self.network == "loopback" else networks.address(self.network, subnet, number)
        broker = Broker(number, host, port, port + CONTROLLER_PORTS, rack)
        if self.network == "proxies":
            broker.own_port, broker.own_controller_port = port + PROXIED_PORTS, port + PROXIED_PORTS + CONTROLLER_PORTS
            broker.peer_port, broker.own_peer_port = port + PEER_PORTS, port + PEER_PORTS + PROXIED_PORTS // 2
        return broker

    def broker_settings(self, broker: Broker, brokers: list[Broker], data: str) -> dict[str, str]:
        """All settings of one of the brokers, whose data is in the folder `data`."""
        listeners = {
            "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{broker.host}:{broker.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{broker.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        if self.network == "proxies":
            listeners = {
                "listeners": _listeners(broker.host, broker.own_port, broker.own_controller_port, broker.own_peer_port),
                "advertised.listeners": _listeners(broker.host, broker.port, broker.controller_port, broker.peer_port),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PEERS:PLAINTEXT",
                "inter.broker.listener.name": "PEERS",
            }
        voters = ",".join(f"{each.number}@{each.host}:{each.controller_port}" for each in brokers)
        return {
            "node.id": str(broker.number),
            "broker.rack": broker.rack,
            **listeners,
            "controller.quorum.voters": voters,
            "log.dirs": data,
            **self.kafka_settings(),
        }


class State(msgspec.Struct):
    """What `cluster.json` says."""

    plan: Plan
    subnet: int
    java: str
    jars: str
    brokers: list[Broker]
    version: int = 0
    """Grows with each change, so that the proxies can tell which one they obey."""
    proxies_pid: int = 0


def _listeners(host: str, port: int, controller_port: int, peer_port: int) -> str:
    return f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port},PEERS://{host}:{peer_port}"
