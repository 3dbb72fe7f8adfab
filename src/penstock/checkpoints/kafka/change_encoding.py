"""Turn a change into the writes of the Kafka store, and read the history entries among them."""

from __future__ import annotations

import collections
import logging
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from confluent_kafka import TopicPartition

from penstock.checkpoints.format import corrupt, decode_history, encode_checkpoint, encode_history, id_bytes
from penstock.checkpoints.kafka.entries import (
    HANDLED,
    Entry,
    checkpoint_entry,
    decode_handled,
    encode_handled,
    handled_entry,
    key_of,
    state_entry,
)
from penstock.checkpoints.kafka.topic_cache import TopicCache
from penstock.checkpoints.kafka.writing import Write
from penstock.errors import BrokerUnavailableError, CorruptCheckpointError, StoreUnavailableError, StreamError
from penstock.model import Change, CheckpointKey, HistoryEntry, Lease, Pointer
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.stream import KafkaStream

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 2_000
_LENGTH: Final = struct.Struct(">I")


class KafkaHistory:
    """Entries are kept for the topic's `retention.ms`. Finding those of one partition reads all of its topic partition:
    reading is rare and slow, writing happens with every save and is fast."""

    def __init__(self, connection: KafkaStream, topic: str, partitions: int, retention_s: float) -> None:
        self._connection = connection
        self._topic = topic
        connection.administration.provide(topic, partitions, {"retention.ms": str(round(retention_s * 1000))})

    def encode(self, lease: Lease, key: CheckpointKey, history: Sequence[HistoryEntry]) -> bytes:
        """One record for all entries of a save: their partition, the epoch, and the entries."""
        head = msgspec.msgpack.encode((id_bytes(key.group), id_bytes(key.topic), key.partition, lease.epoch))
        return _LENGTH.pack(len(head)) + head + encode_history(history)

    def read(
        self,
        key: CheckpointKey,
        partition: int,
        *,
        above_epoch: int,
        since_ms: int,
        pointer: Pointer | None,
        limit: int,
    ) -> Sequence[HistoryEntry]:
        """Entries of later epochs that ended at a time or later, oldest first, the newest `limit`."""
        found: collections.deque[HistoryEntry] = collections.deque(maxlen=limit)
        stream = self._connection.open_topic(self._topic)
        try:
            at, end = stream.span(partition)
            while at < end:
                batch = stream.read(partition, at, _AT_ONCE, wait_s=0.0)  # returns when it has reached the end
                if batch.next == at:
                    raise StoreUnavailableError(f"{self._topic}-{partition} could not be read to its end")
                at = batch.next
                for value in batch.values():
                    found.extend(
                        each
                        for each in self._lines(value or b"", key, above_epoch)
                        if each.ended_ms >= since_ms and (pointer is None or each.first <= pointer < each.end)
                    )
        finally:
            stream.close()
        return list(found)

    def _lines(self, value: bytes, key: CheckpointKey, above_epoch: int) -> list[HistoryEntry]:
        (length,) = _LENGTH.unpack_from(value)
        end = _LENGTH.size + length
        group, topic, partition, epoch = _ENTRIES_HEAD.decode(value[_LENGTH.size : end])
        is_ours = (group, topic, partition) == (id_bytes(key.group), id_bytes(key.topic), key.partition)
        if not is_ours or epoch <= above_epoch:
            return []
        return decode_history(value[end:], key)


_ENTRIES_HEAD: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, int, int])


_HEAD: Final = struct.Struct(">16sq")
"""The token of the save, and the time from which on history counts."""
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
        raise corrupt(f"the checkpoint of {key}", f"it has only {len(value)} bytes")
    token, history_since_ms = _HEAD.unpack_from(value)
    return StoredCheckpoint(token, history_since_ms, value[_HEAD.size :])


class ChangeEncoder:
    """Turns changes into writes. Thread-safe."""

    def __init__(self, connection: KafkaStream, cache: TopicCache, history: KafkaHistory) -> None:
        self._administration = TopicAdministration(connection.administration.admin, _TOPICS_TIMEOUT_S)
        self._cache = cache
        self._history = history
        self._since_ms: dict[CheckpointKey, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._topics_seen_s = float("-inf")

    def prepare(self, lease: Lease, key: CheckpointKey, change: Change, token: bytes) -> Write:
        since_ms = max(self._history_since_ms(key), change.forget_history_before_ms or 0)
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
        lines = self._history.encode(lease, key, change.history) if change.history else None
        start = change.checkpoint.start
        shows = 0 <= start <= _LARGEST_OFFSET and self._is_topic(key.topic)
        return Write(values, [TopicPartition(key.topic, key.partition, start)] if shows else (), lines)

    def forget_topics(self) -> None:
        """Look again which topics there are: one may have been deleted."""
        self._topics = frozenset()
        self._topics_seen_s = float("-inf")

    def token_of(self, key: CheckpointKey) -> bytes:
        """The token of the save that wrote the checkpoint."""
        stored = self._stored(key)
        return b"" if stored is None else stored.token

    def _history_since_ms(self, key: CheckpointKey) -> int:
        stored = self._stored(key)
        stored_ms = 0 if stored is None else stored.history_since_ms
        return max(stored_ms, self._since_ms.get(key, 0))  # our own write may not have been read yet

    def _stored(self, key: CheckpointKey) -> StoredCheckpoint | None:
        """The checkpoint that a save replaces; None if there is none, or it is damaged."""
        try:
            value = self._cache.entry(checkpoint_entry(key))
            return None if value is None else opened_checkpoint(value, key)
        except CorruptCheckpointError:
            return None

    def _handled_before(self, key: CheckpointKey, before_ms: int) -> list[Entry]:
        """Entries whose idempotency keys are all past their window."""
        return [
            entry
            for entry, data in self._cache.entries(key.group, HANDLED).items()
            if key_of(entry) == key and all(each.at_ms < before_ms for each in decode_handled(data))
        ]

    def _is_topic(self, topic: str) -> bool:
        """Whether Kafka has this topic, so that the group can commit offsets in it. False if that is unknown now."""
        if topic not in self._topics and time.monotonic() - self._topics_seen_s > _TOPICS_KNOWN_S:
            try:
                self._topics = frozenset(each.name for each in self._administration.all())
            except (BrokerUnavailableError, StreamError) as error:
                logger.info("the group's offsets in topic %r are not committed for now: %s", topic, error)
                return False
            self._topics_seen_s = time.monotonic()
        return topic in self._topics
