"""A stream with a checkpoint store keeps the promises of a queue."""

from __future__ import annotations

from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.sharing import StreamQueue
from penstock.model.clock import SystemClock
from penstock.testing import MemoryStreams, conformance

STREAMS = MemoryStreams()
STORE = MemoryCheckpoints()


def in_memory() -> StreamQueue:
    stream = STREAMS.stream("queue")
    return StreamQueue(stream, STORE, "workers", member="w", visibility_s=2.0, clock=SystemClock())


TestInMemory = conformance.queue(in_memory, visibility_s=2.0)
