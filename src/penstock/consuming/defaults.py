"""Where checkpoints are kept when nobody says: beside the stream, where every member of the group can reach them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Feature, Streams
from penstock.checkpoints.opening import open_store
from penstock.consuming.handlers import Handler
from penstock.consuming.options import ConsumerOptions
from penstock.errors import ConfigError
from penstock.model import Guarantee

LOG_CHECKPOINTS: Final = "checkpoints.sqlite"
"""The file, in the data folder of an embedded log, that keeps the checkpoints of its consumers."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and whether it is ours to close."""

    store: CheckpointStore
    is_ours: bool

    def close(self) -> None:
        if self.is_ours:
            self.store.close()


def open_checkpoints(
    given: str | CheckpointStore | None,
    streams: Streams,
    handler: Handler,
    options: ConsumerOptions,
) -> Opened:
    """The store that was given, or the one that goes with the stream."""
    if given is None:
        by_stream = options.guarantee is Guarantee.EXACTLY_ONCE and handler.to is not None
        return Opened(default_store(streams, in_the_stream=by_stream), is_ours=True)
    if isinstance(given, str):
        if given.rstrip("/") == "kafka:":
            return Opened(_kafka_store(streams), is_ours=True)
        return Opened(open_store(given), is_ours=True)
    return Opened(given, is_ours=False)


def default_store(streams: Streams, *, in_the_stream: bool) -> CheckpointStore:
    """SQLite in the folder of an embedded log, which all its clients share; in the brokers for other Kafkas."""
    scheme, _, rest = streams.url.partition(":")
    if scheme == "memory":
        return open_store("memory:")
    if scheme == "log" and not in_the_stream:
        return open_store(f"sqlite:{Path(rest).expanduser().absolute() / LOG_CHECKPOINTS}")
    if Feature.TRANSACTIONS in streams.features:
        return _kafka_store(streams)
    raise ConfigError(
        f"say where checkpoints are kept: checkpoints='sqlite:./checkpoints.db'; {streams.url} has no place"
    )


def _kafka_store(streams: Streams) -> CheckpointStore:
    from penstock.checkpoints.kafka import KafkaCheckpoints
    from penstock.streams import Connection

    if not isinstance(streams, Connection):
        raise ConfigError(f"checkpoints='kafka:' needs a Kafka stream; {streams.url} is none")
    return KafkaCheckpoints(streams)
