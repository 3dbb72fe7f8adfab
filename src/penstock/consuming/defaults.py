"""The default checkpoint store: the stream's own, which every member of the group can reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.abc import CheckpointStore, Feature, HasCheckpoints, Stream
from penstock.checkpoints.opening import open_store
from penstock.consuming.handlers import Handler
from penstock.consuming.options import ConsumerOptions
from penstock.errors import ConfigError
from penstock.model import Checkpoint, CheckpointKey, Guarantee, HistoryEntry, Pointer
from penstock.streams.capability import capability

Checkpoints = Mapping[int, Checkpoint]
"""The checkpoints of a group in one topic, by partition."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and whether it is ours to close."""

    store: CheckpointStore
    is_ours: bool

    def history(self, key: CheckpointKey, pointer: Pointer | None, limit: int) -> Sequence[HistoryEntry]:
        """The history of a record, or of a partition, oldest first. ConfigError when the store keeps none."""
        if Feature.HISTORY not in self.store.features:
            raise ConfigError(f"{type(self.store).__name__} has no {Feature.HISTORY}")
        return self.store.history(key, pointer, limit)

    def close(self) -> None:
        if self.is_ours:
            self.store.close()


def open_checkpoints(
    given: str | CheckpointStore | None, stream: Stream, handler: Handler, options: ConsumerOptions
) -> Opened:
    """The store that was given, or the one that goes with the stream."""
    if given is None:
        by_stream = options.guarantee is Guarantee.EXACTLY_ONCE and handler.to is not None
        return Opened(default_store(stream, in_the_stream=by_stream), is_ours=True)
    if isinstance(given, str):
        return Opened(open_store(given, stream), is_ours=True)
    if not all(callable(getattr(given, name, None)) for name in ("load", "save", "claim", "leases", "release")):
        raise ConfigError(
            f"checkpoints={given!r} is not a checkpoint store: pass a URL, such as 'sqlite:./checkpoints.db', or an "
            "object with the methods of penstock.abc.CheckpointStore"
        )
    return Opened(given, is_ours=False)


def checkpoints_of_topic(opened: Opened, group: str, topic: str) -> Checkpoints:
    """The checkpoints of a group in one topic. Closes the store."""
    try:
        found = opened.store.checkpoints(group)
        return {key.partition: checkpoint for key, checkpoint in found.items() if key.topic == topic}
    finally:
        opened.close()


def default_store(stream: Stream, *, in_the_stream: bool) -> CheckpointStore:
    """Where the stream itself says that checkpoints are kept. ConfigError when it has no place for them."""
    beside = capability(stream, HasCheckpoints)
    if beside is None:
        raise ConfigError(
            f"{stream.url} has no place for checkpoints: pass checkpoints= (on the command line, --checkpoints), such "
            "as sqlite:./checkpoints.db"
        )
    return open_store(beside.checkpoint_url(in_stream=in_the_stream), stream)
