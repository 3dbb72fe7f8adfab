"""A member of a sharing group in a process of its own, to be killed.

    python -m tests.consuming.share_worker DATABASE EFFECTS NAME VISIBILITY_S PARTITIONS COUNT [STEP NTH WHEN]

For each record it adds a line to the file EFFECTS, `name attempt value`, and settles it. It ends when nothing is left,
or on SIGTERM; or it kills itself at the NTH time that it comes to a STEP of the store, `before` or `after` it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from penstock.abc import CheckpointStore, Outcome
from penstock.checkpoints.sqlite import SqliteCheckpoints
from penstock.consuming.sharing import StreamQueue
from penstock.errors import StaleDeliveryError
from penstock.model import CheckpointKey
from penstock.model.clock import SystemClock
from penstock.testing import CrashingStore
from tests.consuming.counting_stream import CountingStream

GROUP = "workers"
TOPIC = "jobs"


def is_all_finished(store: CheckpointStore, partitions: int, count: int) -> bool:
    found = [store.load(CheckpointKey(GROUP, TOPIC, partition)) for partition in range(partitions)]
    return all(checkpoint is not None and checkpoint.start >= count for checkpoint in found)


def work(
    store: CheckpointStore,
    effects: str,
    name: str,
    visibility_s: float,
    partitions: int,
    count: int,
    is_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Until nothing is left."""
    stream = CountingStream(TOPIC, partitions, count)
    queue = StreamQueue(stream, store, GROUP, member=name, visibility_s=visibility_s, batch=5, clock=SystemClock())
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while not is_ended() and not is_all_finished(store, partitions, count):
        for delivery in queue.receive(5, 0.1):
            os.write(file, b"%b %d %b\n" % (name.encode(), delivery.attempt, delivery.record.value or b""))
            try:
                queue.settle(delivery, Outcome.DONE)
            except StaleDeliveryError:
                continue  # somebody else has it, and will settle it
    os.close(file)
    queue.close()


if __name__ == "__main__":
    database, effects, name, visibility_s, partitions, count, *crash = sys.argv[1:]
    store: CheckpointStore = SqliteCheckpoints(database)
    if crash:
        store = CrashingStore(store, crash[0], int(crash[1]), after=crash[2] == "after")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: ended.set())
    work(store, effects, name, float(visibility_s), int(partitions), int(count), ended.is_set)
