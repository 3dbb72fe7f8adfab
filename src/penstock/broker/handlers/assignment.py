"""Which broker a partition is on, as requests may say it: there is one broker, so there is one right answer."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError


def check_replicas(replicas: Sequence[int], node_id: int) -> None:
    """Raise ProtocolError unless the replicas of a partition are exactly this node."""
    if list(replicas) == [node_id]:
        return
    if not replicas:
        problem = "names no broker"
    elif len(set(replicas)) < len(replicas):
        problem = f"names a broker twice: {', '.join(map(str, replicas))}"
    else:
        others = ", ".join(str(replica) for replica in replicas if replica != node_id)
        problem = f"names brokers that do not exist: {others}"
    raise ProtocolError(
        ErrorCode.invalid_replica_assignment,
        f"the assignment {problem}. penstock's log is one node: assign every partition to broker {node_id} alone, "
        "or leave the assignment out.",
    )
