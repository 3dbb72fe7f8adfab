"""Spark's own reports on the queries of a pipeline, passed on to its book."""

from __future__ import annotations

import json

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.spark.progress import ProgressBook


class ProgressListener(StreamingQueryListener):
    """Hears of every query of the session, and tells of those whose Spark names begin with that of the pipeline."""

    def __init__(self, pipeline: str, book: ProgressBook) -> None:
        self._prefix = f"{pipeline}."
        self._book = book

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known of it yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name = event.progress.name or ""
        if name.startswith(self._prefix):
            self._book.tell_progress(name.removeprefix(self._prefix), json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Waiting for input is not worth a word."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever supervises the query knows, and knows why."""
