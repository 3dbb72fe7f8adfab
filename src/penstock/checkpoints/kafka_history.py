"""The history of the Kafka store: lines in a topic of their own, which nobody holds in memory."""

from __future__ import annotations

import collections
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.checkpoints.format import decode_happenings, encode_happenings
from penstock.errors import StoreUnavailableError
from penstock.model import CheckpointKey, Happening, Lease, Pointer
from penstock.streams.kafka.connection import Connection

_AT_ONCE: Final = 2_000
_EPOCH: Final = struct.Struct(">I")


class KafkaHistory:
    """Lines are kept for the topic's `retention.ms`. To find those of one partition, all of its share of the topic is
    read: asking is for people, and slow; writing is for every save, and quick."""

    def __init__(self, connection: Connection, topic: str, partitions: int, retention_s: float) -> None:
        self._connection = connection
        self._topic = topic
        connection.administration.provide(topic, partitions, {"retention.ms": str(round(retention_s * 1000))})

    def encode(self, lease: Lease, key: CheckpointKey, happenings: Sequence[Happening]) -> bytes:
        """One record for all lines of a save: whose they are, the epoch, and the lines."""
        head = msgspec.msgpack.encode((_bytes(key.group), _bytes(key.topic), key.partition, lease.epoch))
        return _EPOCH.pack(len(head)) + head + encode_happenings(happenings)

    def read(
        self,
        key: CheckpointKey,
        partition: int,
        *,
        above_epoch: int,
        since_ms: int,
        pointer: Pointer | None,
        limit: int,
    ) -> Sequence[Happening]:
        """Lines written under later epochs, that ended at a time or later, oldest first, the newest `limit`."""
        found: collections.deque[Happening] = collections.deque(maxlen=limit)
        stream = self._connection.stream(self._topic)
        try:
            at, end = stream.span(partition)
            while at < end:
                batch = stream.read(partition, at, _AT_ONCE, wait_s=0.0)  # comes back when it has seen the end
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

    def _lines(self, value: bytes, key: CheckpointKey, above_epoch: int) -> list[Happening]:
        (length,) = _EPOCH.unpack_from(value)
        end = _EPOCH.size + length
        group, topic, partition, epoch = _HEAD.decode(value[_EPOCH.size : end])
        if (group, topic, partition) != (_bytes(key.group), _bytes(key.topic), key.partition) or epoch <= above_epoch:
            return []
        return decode_happenings(value[end:], key)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_HEAD: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, int, int])
