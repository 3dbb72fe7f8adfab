"""Which records a batch contains, as Spark's checkpoint says."""

from __future__ import annotations

import json

from penstock.spark.run.state_folder import StateFolder
from penstock.spark.source.stream_reader import SourceOffset


def batch_offsets(checkpoint: StateFolder, batch_id: int) -> dict[tuple[str, int], tuple[int, int]]:
    """By topic and partition: the first offset of a batch, and the one after its last.

    Sources that are not topics are left out. A partition whose begin is unknown, as in the first batch of Spark's own
    Kafka connector, begins at 0.
    """
    begun: dict[tuple[str, int], int] = {}
    for source in _sources(checkpoint, batch_id - 1):
        begun.update(source.pointers)
    found = {}
    for source in _sources(checkpoint, batch_id):
        for place, end in source.pointers.items():
            first = source.begun.get(place, begun.get(place, 0))
            if first < end:
                found[place] = (first, end)
    return found


def _sources(checkpoint: StateFolder, batch_id: int) -> list[SourceOffset]:
    """The ends of a batch in its sources: the lines after the version and Spark's own settings."""
    text = checkpoint.read(f"offsets/{batch_id}") if batch_id >= 0 else None
    if text is None:
        return []
    found = []
    for line in text.splitlines()[2:]:
        try:
            written = json.loads(line)
            found.append(SourceOffset.from_json(written))
        except (ValueError, AttributeError, TypeError):
            continue  # no topic: a folder of files, a rate, or no offset yet
    return found
