"""`kafka:` among the checkpoint stores, as `penstock.streams.schemes` finds it."""

from __future__ import annotations

from penstock.abc import Stream
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.errors import ConfigError


def open_kafka(url: str, stream: Stream | None) -> KafkaCheckpoints:
    """Checkpoints in the brokers of the stream, for `kafka:`, or in those of a URL of their own."""
    if url.rstrip("/") != "kafka:":
        return KafkaCheckpoints(url)
    if stream is None:
        raise ConfigError("checkpoints='kafka:' are kept in the stream, and the app has none: pass kafka://HOST:PORT")
    return KafkaCheckpoints(stream)
