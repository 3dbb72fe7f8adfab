"""A member of a group by lease in a process of its own, which says what happens to it, to be killed and stopped.

    python -m tests.consuming.group_member DATABASE NAME TTL_S PARTITIONS

Each line on its standard output is `time word partition epoch`: `assigned`, `revoked`, `lost`, and `saved` or `refused`
for each save it tries, which it does for each of its partitions in every round. The time is the machine's monotonic
clock, the same for all processes.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence

from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.errors import FencedError
from penstock.model import Change, Checkpoint, CheckpointKey, Lease, Pointer
from penstock.model.clock import SystemClock
from tests.consuming.counting_stream import CountingStream

GROUP = "billing"
TOPIC = "orders"


class Speaker:
    """A listener that says what it hears."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        for partition, lease in partitions.items():
            assert lease is not None
            self.leases[partition] = lease
            say("assigned", partition, lease)
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            say("revoked", partition, self.leases.pop(partition))

    def lost(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            say("lost", partition, self.leases.pop(partition))


def say(word: str, partition: int, lease: Lease) -> None:
    sys.stdout.write(f"{time.monotonic()} {word} {partition} {lease.epoch}\n")
    sys.stdout.flush()


def run(database: str, name: str, ttl_s: float, partitions: int) -> None:
    ended = False

    def end(signum: int, frame: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    store, speaker = SqliteCheckpoints(database), Speaker()
    feed = LeaseGroupFeed(
        CountingStream(TOPIC, partitions), store, GROUP, speaker, member=name, ttl_s=ttl_s, clock=SystemClock()
    )
    while not ended:
        feed.poll(10, 0.02)
        for partition, lease in list(speaker.leases.items()):
            try:
                store.save(lease, CheckpointKey(GROUP, TOPIC, partition), Change(Checkpoint(0, 0)))
            except FencedError:
                say("refused", partition, lease)
            else:
                say("saved", partition, lease)
    feed.close()
    store.close()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
