"""The embedded log as a queue, with SQLite checkpoints: what a user gets by default, opened by any process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import penstock
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.errors import TopicExistsError
from penstock.model.clock import SystemClock

VISIBILITY_S = 2.0


class QueueOnTheLog(StreamQueue):
    """A queue that owns its connection and its store."""

    def __init__(self, folder: Path) -> None:
        self._connection = penstock.connect(f"log:{folder / 'data'}", exit_when_idle_s=1.0)
        with contextlib.suppress(TopicExistsError):  # another process was quicker
            self._connection.create_topic("queue")
        self._checkpoints = SqliteCheckpoints(folder / "checkpoints.db")
        stream = self._connection.open_topic("queue")
        super().__init__(
            stream, self._checkpoints, "workers", member="w", visibility_s=VISIBILITY_S, clock=SystemClock()
        )

    def close(self) -> None:
        super().close()
        self._connection.close()
        self._checkpoints.close()
