"""A stream with a checkpoint store keeps the promises of a queue."""

from __future__ import annotations

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.model.clock import SystemClock
from penstock.testing import MemoryStream, conformance
from tests.consuming.queue_on_the_log import VISIBILITY_S, QueueOnTheLog

STREAMS = MemoryStream()
STORE = MemoryCheckpoints()


def in_memory() -> StreamQueue:
    stream = STREAMS.open_topic("queue")
    return StreamQueue(stream, STORE, "workers", member="w", visibility_s=VISIBILITY_S, clock=SystemClock())


TestInMemory = conformance.queue(in_memory, visibility_s=VISIBILITY_S)

TestKilledOnTheLog = conformance.queue(QueueOnTheLog, visibility_s=VISIBILITY_S)
for name in [name for name in dir(TestKilledOnTheLog) if name.startswith("test_") and "killed" not in name]:
    setattr(TestKilledOnTheLog, name, None)  # memory shows the rest: here it is about what outlives a process
