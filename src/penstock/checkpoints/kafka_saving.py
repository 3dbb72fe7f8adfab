"""What a save writes in the Kafka store."""

from __future__ import annotations

import logging
import struct
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from penstock.checkpoints.format import corrupt, encode_checkpoint
from penstock.checkpoints.kafka_entries import (
    HANDLED,
    Entry,
    checkpoint_entry,
    decode_handled,
    encode_handled,
    handled_entry,
    key_of,
    state_entry,
)
from penstock.checkpoints.kafka_history import KafkaHistory
from penstock.checkpoints.kafka_shelf import Shelf
from penstock.checkpoints.kafka_writing import Write
from penstock.errors import BrokerUnavailableError, CorruptCheckpointError, StreamError
from penstock.model import Change, CheckpointKey, Lease
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.topics import TopicAdministration

logger = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(">16sq")
"""The token of the save, and from when on lines of the history count."""
_TOPICS_KNOWN_S: Final = 60.0
_TOPICS_TIMEOUT_S: Final = 1.0
_LARGEST_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    token: bytes
    history_since_ms: int
    data: bytes


def opened_checkpoint(value: bytes, key: CheckpointKey) -> StoredCheckpoint:
    if len(value) < _HEAD.size:
        raise corrupt(f"the checkpoint of {key}", f"it has {len(value)} bytes only")
    token, history_since_ms = _HEAD.unpack_from(value)
    return StoredCheckpoint(token, history_since_ms, value[_HEAD.size :])


class Saving:
    """From changes to what is written. Any thread may use it."""

    def __init__(self, connection: Connection, shelf: Shelf, history: KafkaHistory) -> None:
        self._administration = TopicAdministration(connection.administration.admin, _TOPICS_TIMEOUT_S)
        self._shelf = shelf
        self._history = history
        self._since_ms: dict[CheckpointKey, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._topics_seen_s = float("-inf")

    def prepare(self, lease: Lease, key: CheckpointKey, change: Change, token: bytes) -> Write:
        since_ms = max(self._history_since_ms(key), change.forget_happenings_before_ms or 0)
        self._since_ms[key] = since_ms
        values: dict[Entry, bytes | None] = {
            checkpoint_entry(key): _HEAD.pack(token, since_ms) + encode_checkpoint(change.checkpoint)
        }
        for name, value in change.state.items():
            values[state_entry(key, name)] = value
        if change.forget_handled_before_ms is not None:
            values.update(dict.fromkeys(self._handled_before(key, change.forget_handled_before_ms)))
        if change.handled:
            values[handled_entry(key, token)] = encode_handled(change.handled)
        lines = self._history.encode(lease, key, change.happenings) if change.happenings else None
        start = change.checkpoint.start
        shows = 0 <= start <= _LARGEST_OFFSET and self._is_topic(key.topic)
        return Write(values, [TopicPartition(key.topic, key.partition, start)] if shows else (), lines)

    def token_of(self, key: CheckpointKey) -> bytes:
        """Which save made the checkpoint what it is."""
        stored = self._stored(key)
        return b"" if stored is None else stored.token

    def _history_since_ms(self, key: CheckpointKey) -> int:
        stored = self._stored(key)
        stored_ms = 0 if stored is None else stored.history_since_ms
        return max(stored_ms, self._since_ms.get(key, 0))  # what we wrote ourselves may not have been read yet

    def _stored(self, key: CheckpointKey) -> StoredCheckpoint | None:
        """The checkpoint that a save replaces, be it that nothing can be made of it."""
        try:
            value = self._shelf.entry(checkpoint_entry(key))
            return None if value is None else opened_checkpoint(value, key)
        except CorruptCheckpointError:
            return None

    def _handled_before(self, key: CheckpointKey, before_ms: int) -> list[Entry]:
        """Entries whose idempotency keys have all been remembered for long enough."""
        return [
            entry
            for entry, data in self._shelf.entries(key.group, HANDLED).items()
            if key_of(entry) == key and all(each.at_ms < before_ms for each in decode_handled(data))
        ]

    def _is_topic(self, topic: str) -> bool:
        """Whether Kafka has this topic, so that a group can have offsets in it. Not, if that cannot be had now."""
        if topic not in self._topics and time.monotonic() - self._topics_seen_s > _TOPICS_KNOWN_S:
            try:
                self._topics = frozenset(each.name for each in self._administration.all())
            except (BrokerUnavailableError, StreamError) as error:
                logger.info("the group's offsets in topic %r are not shown for now: %s", topic, error)
                return False
            self._topics_seen_s = time.monotonic()
        return topic in self._topics
