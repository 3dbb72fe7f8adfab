"""The drills by name, and running one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from penstock.cluster.brokers import Cluster
from penstock.cluster.drills import elections, operations, replication
from penstock.cluster.drills.stage import Outcome, Stage
from penstock.errors import ClusterError
from penstock.java.downloads import Tell, silent

FEWEST_BROKERS: Final = 3


@dataclass(frozen=True, slots=True)
class Drill:
    """One subject."""

    name: str
    play: Callable[[Stage], Outcome]
    disk_mb: int | None = None
    """The size of the disk that each broker of a temporary cluster has, if the size matters."""

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (self.play.__doc__ or "").strip().splitlines()[0]


DRILLS: Final = {
    drill.name: drill
    for drill in (
        Drill("leader-failover", replication.leader_failover),
        Drill("acks", replication.acks),
        Drill("in-sync-replicas", replication.in_sync_replicas),
        Drill("high-watermark", replication.high_watermark),
        Drill("unclean-election", elections.unclean_election),
        Drill("controller-election", elections.controller_election),
        Drill("preferred-leader", elections.preferred_leader),
        Drill("rolling-restart", operations.rolling_restart),
        Drill("rack-awareness", operations.rack_awareness),
        Drill("reassignment", operations.reassignment),
        Drill("full-disk", operations.full_disk, operations.DISK_MB),
        Drill("compaction", operations.compaction),
    )
}


def run(name: str, cluster: Cluster, seed: int, tell: Tell = silent) -> Outcome:
    """Run a drill on a cluster, and leave all of its brokers running and in sync.

    Raises ClusterError if there is no such drill, if the cluster has too few brokers, or if something that the drill
    waits for does not happen.
    """
    drill = DRILLS.get(name)
    if drill is None:
        raise ClusterError(f"there is no drill {name!r}: choose one of {', '.join(DRILLS)}")
    if len(cluster.numbers) < FEWEST_BROKERS:
        raise ClusterError(
            f"drills need {FEWEST_BROKERS} brokers for {FEWEST_BROKERS} replicas, and this cluster has "
            f"{len(cluster.numbers)}: start one with `penstock cluster up --brokers {FEWEST_BROKERS}`"
        )
    stage = Stage(cluster, seed, tell)
    try:
        stage.make_whole()
        try:
            outcome = drill.play(stage)
        finally:
            stage.close()
    except KafkaException as error:
        raise ClusterError(f"drill {name} could not go on, as a broker answered: {error}") from error
    outcome.findings = stage.findings
    return outcome
