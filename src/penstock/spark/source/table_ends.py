"""What can be read in a partition at this moment, asked by a task."""

from __future__ import annotations

from penstock.errors import BrokerUnavailableError, ConnectionClosedError
from penstock.spark.source.origin import Origin
from penstock.spark.source.task_reading import close_stream, open_stream


def span_now(origin: Origin, partition: int) -> tuple[int, int]:
    """The earliest pointer of a partition, and the place behind the last record that is safe and decided.

    The connection is kept for the next batch. If it has become useless since the last one, another is made.
    """
    here = _as_found_here(origin)
    try:
        return open_stream(here).span(partition)
    except (BrokerUnavailableError, ConnectionClosedError):
        close_stream(here)
        return open_stream(here).span(partition)


def _as_found_here(origin: Origin) -> Origin:
    """A log on this host is named by its folder: then connecting finds its broker, or starts it, at whatever port."""
    if origin.folder is None or not origin.folder.is_here():
        return origin
    return Origin(f"log:{origin.folder.path}", origin.topic, origin.client, origin.folder)
