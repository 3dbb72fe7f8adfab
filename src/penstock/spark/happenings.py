"""What happened to the queries of a pipeline: starts, restarts with their errors, and how they ended.

It stands in the checkpoint folder, a line of JSON for each, where `penstock.observe.pipelines` reads it. A run that was
killed has no last line: the next one begins with `started` all the same.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from penstock.spark.folders import StateFolder

logger = logging.getLogger(__name__)

HAPPENINGS_FILE: Final = "happenings.jsonl"
MOST_LINES: Final = 300
LONGEST_ERROR: Final = 1_000
_BY_STATE: Final = {
    "running": "started",
    "waiting": "restarted",
    "failed": "failed",
    "finished": "finished",
    "stopped": "stopped",
}


def what_happened(before: str, state: str) -> str | None:
    """What to write down about a query that was in one state and is in another now; None: nothing.

    One that runs again after it had waited has been written down when it began to wait, with the error.
    """
    return None if state == "running" and before == "waiting" else _BY_STATE.get(state)


class Happenings:
    """The file of one pipeline, which keeps its newest lines. Any thread may use it."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def add(self, at: float, query: str, what: str, error: str | None, batch_id: int) -> None:
        """Write it down. That it cannot be is logged: no query ends because its history has no room."""
        told = None if error is None else error[:LONGEST_ERROR]
        line = json.dumps({"at": at, "query": query, "what": what, "error": told, "batch_id": batch_id})
        with self._lock:
            try:
                lines = (self._folder.read(HAPPENINGS_FILE) or "").splitlines()
                kept = [*lines, line][-MOST_LINES:]
                self._folder.write(HAPPENINGS_FILE, "\n".join(kept) + "\n")
            except (OSError, ValueError) as problem:
                logger.warning("what happened to query %s could not be written down: %s", query, problem)
