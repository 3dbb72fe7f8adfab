"""A member of a sharing group in a process of its own, to be killed.

For each record it adds a line to a file of effects, `name attempt value`, and settles it. It ends when nothing is left,
or kills itself at the nth time that it comes to a step of the store, before or after it.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from penstock.abc import CheckpointStore, Outcome
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.errors import StaleDeliveryError
from penstock.model import CheckpointKey
from penstock.model.clock import SystemClock
from penstock.testing import CrashingStore
from tests.consuming.counting_stream import CountingStream
from tests.forking import FORKING
from tests.prove.deaths import Death

GROUP = "workers"
TOPIC = "jobs"
ALLOWED_WITHIN_S = 120.0


def is_all_finished(store: CheckpointStore, partitions: int, count: int) -> bool:
    found = [store.load(CheckpointKey(GROUP, TOPIC, partition)) for partition in range(partitions)]
    return all(checkpoint is not None and checkpoint.start >= count for checkpoint in found)


def allow(effects: Path, most_bytes: int) -> None:
    """Let workers add to the effects up to here, and wait then: so they cannot be done before they are killed."""
    fresh = effects.with_suffix(".fresh")
    fresh.write_text(str(most_bytes))
    fresh.replace(effects.with_suffix(".allowed"))


def allowed_bytes(effects: str) -> int:
    try:
        return int(Path(effects).with_suffix(".allowed").read_text())
    except FileNotFoundError:
        return sys.maxsize


def wait_until_allowed(file: int, effects: str, timeout_s: float) -> None:
    """Until there may be another effect."""
    deadline_s = time.monotonic() + timeout_s
    while os.fstat(file).st_size >= allowed_bytes(effects):
        assert time.monotonic() < deadline_s, "nobody has allowed another effect"
        time.sleep(0.001)


def work(
    store: CheckpointStore,
    effects: str,
    name: str,
    visibility_s: float,
    partitions: int,
    count: int,
) -> None:
    """Until nothing is left."""
    stream = CountingStream(TOPIC, partitions, count)
    queue = StreamQueue(stream, store, GROUP, member=name, visibility_s=visibility_s, clock=SystemClock())
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while not is_all_finished(store, partitions, count):
        for delivery in queue.receive(5, 0.1):
            wait_until_allowed(file, effects, timeout_s=ALLOWED_WITHIN_S)
            os.write(file, b"%b %d %b\n" % (name.encode(), delivery.attempt, delivery.record.value or b""))
            try:
                queue.settle(delivery, Outcome.DONE)
            except StaleDeliveryError:
                continue  # somebody else has it, and will settle it
    os.close(file)
    queue.close()


def start(
    database: Path, effects: Path, name: str, visibility_s: float, partitions: int, count: int, death: Death | None
) -> BaseProcess:
    """A process that works until nothing is left, or until its death."""
    process = FORKING.Process(target=_run, args=(database, effects, name, visibility_s, partitions, count, death))
    process.start()
    return process


def _run(
    database: Path, effects: Path, name: str, visibility_s: float, partitions: int, count: int, death: Death | None
) -> None:
    store: CheckpointStore = SqliteCheckpoints(database)
    if death is not None:
        store = CrashingStore(store, death.at, death.nth, after=death.after)
    work(store, str(effects), name, visibility_s, partitions, count)
