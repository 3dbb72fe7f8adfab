"""How far a query has come in its topic: what Spark keeps in the query's checkpoint, as JSON.

    {"orders": {"0": 17, "1": 4}, "@id": "...", "@from": {"1": 0}}

The pointers say where the next batch begins. `@id` tells the topic from another one of its name. `@from` is in the end
of a batch that did not begin where the one before it ended: a first batch, one that found new partitions, one that
passed over expired records. Spark forgets where a first batch began, and would ask again after a crash; with `@from`,
a batch that is tried again is the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import CheckpointMismatchError
from penstock.spark.source.positions import Pointers

_ID: Final = "@id"
_FROM: Final = "@from"


@dataclass(frozen=True, slots=True)
class Progress:
    topic: str
    pointers: Pointers
    topic_id: str | None = None
    begun: Pointers = field(default_factory=dict)
    """Where the batch that ends here began, in partitions in which that is not the end of the one before."""

    def to_json(self) -> dict[str, Any]:
        """Always the same text for the same progress: Spark compares texts."""
        written: dict[str, Any] = {self.topic: _by_text(self.pointers)}
        if self.topic_id is not None:
            written[_ID] = self.topic_id
        if self.begun:
            written[_FROM] = _by_text(self.begun)
        return written

    @classmethod
    def from_json(cls, topic: str, written: Mapping[str, Any]) -> Progress:
        pointers = written.get(topic)
        if not isinstance(pointers, Mapping):
            others = ", ".join(repr(name) for name in written if not name.startswith("@")) or "nothing"
            raise CheckpointMismatchError(
                f"this checkpoint is about {others}, and not about topic {topic!r}: choose another checkpointLocation, "
                "or the topic it was made with"
            )
        return cls(topic, _by_number(pointers), written.get(_ID), _by_number(written.get(_FROM, {})))


def _by_text(pointers: Pointers) -> dict[str, int]:
    return {str(partition): pointer for partition, pointer in sorted(pointers.items())}


def _by_number(written: Mapping[str, Any]) -> Pointers:
    return {int(partition): int(pointer) for partition, pointer in written.items()}
