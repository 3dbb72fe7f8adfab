"""Waiting for records, and for queries that fail meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from penstock import Connection

PATIENCE_S: Final = 60.0


def values(connection: Connection, topic: str) -> list[Any]:
    """The JSON values of a topic by now, in their order."""
    return [json.loads(record.value) for record in connection.read(topic) if record.value is not None]


def wait_for_values(
    connection: Connection,
    topic: str,
    query: StreamingQuery,
    enough: Callable[[list[Any]], bool],
    timeout_s: float = PATIENCE_S,
) -> list[Any]:
    """The values of a topic once there are enough of them; what ended the query, if that comes first."""
    until = time.monotonic() + timeout_s
    while not enough(found := values(connection, topic)):
        if (error := query.exception()) is not None:
            raise error
        assert query.isActive, f"the query was stopped while topic {topic!r} had {found}"
        assert time.monotonic() < until, f"topic {topic!r} has only {found} after {timeout_s:g} s"
        time.sleep(0.02)
    return found


def wait_for_batches(query: StreamingQuery, count: int, timeout_s: float = PATIENCE_S) -> None:
    """Return when so many batches of the query have ended."""
    until = time.monotonic() + timeout_s
    while (progress := query.lastProgress) is None or progress.batchId + 1 < count:
        if (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < until, f"not {count} batches within {timeout_s:g} s: {progress}"
        time.sleep(0.02)
