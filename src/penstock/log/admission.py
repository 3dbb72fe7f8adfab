"""What a batch must be before it may enter a partition, and how the topic's settings change it on the way in."""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import InvalidRecordError, InvalidTimestampError
from penstock.log.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    patch_crc,
    read_header,
    rebuild_batch,
    records_of,
)
from penstock.log.compression import NAMES, decompress
from penstock.log.config import TopicConfig

_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35
_KEEP_CODEC: Final = "producer"
_CODECS: Final = {name: number for number, name in enumerate(NAMES)} | {"uncompressed": 0}


class Admission:
    """The rules of one topic, prepared so that the common batch passes with two comparisons."""

    __slots__ = ("_codec", "_needs_keys", "_stamps", "after_max_ms", "before_max_ms", "max_bytes", "rewrites")

    def __init__(self, config: TopicConfig) -> None:
        self.max_bytes = config.max_message_bytes
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.before_max_ms = config.message_timestamp_before_max_ms
        self._stamps = config.message_timestamp_type == "LogAppendTime"
        self._codec = None if config.compression_type == _KEEP_CODEC else _CODECS[config.compression_type]
        self._needs_keys = config.compacts
        self.rewrites = self._stamps or self._needs_keys or self._codec is not None
        """Whether `rewrite` has anything to do for this topic."""

    def check_times(self, base_timestamp: int, max_timestamp: int, now_ms: int) -> None:
        """Raise if a record's own time is further from the broker's than the topic allows."""
        if self._stamps:
            return
        if max_timestamp - now_ms > self.after_max_ms:
            raise InvalidTimestampError(
                f"a record's timestamp {max_timestamp} is {max_timestamp - now_ms} ms ahead of the broker's clock; the "
                f"topic allows {self.after_max_ms} (message.timestamp.after.max.ms). Are they in milliseconds?"
            )
        if now_ms - base_timestamp > self.before_max_ms:
            raise InvalidTimestampError(
                f"a record's timestamp {base_timestamp} is {now_ms - base_timestamp} ms behind the broker's clock; the "
                f"topic allows {self.before_max_ms} (message.timestamp.before.max.ms)"
            )

    def rewrite(self, batch: memoryview, now_ms: int) -> memoryview:
        """The batch as this topic keeps it: keys checked, packed with the topic's codec, stamped with the time."""
        header = read_header(batch)
        if self._needs_keys:
            _require_keys(batch)
        if self._codec is not None and self._codec != header.codec:
            batch = memoryview(_repacked(batch, header, self._codec))
        if self._stamps:
            _stamp(batch, now_ms)
        return batch


def check_unpacks(batch: memoryview) -> None:
    """Raise CorruptBatchError unless what says it is compressed can be unpacked: no reader could do it later either."""
    header = read_header(batch)
    decompress(header.codec, batch[HEADER_BYTES:], MAX_DECOMPRESSED_BYTES)


def _require_keys(batch: memoryview) -> None:
    keyless = [number for number, record in enumerate(records_of(batch)) if record.key is None]
    if keyless:
        raise InvalidRecordError(
            f"{len(keyless)} records of the batch have no key; this topic is compacted, and compaction keeps the last "
            "record of each key. Send a key, or set cleanup.policy=delete.",
            keyless,
        )


def _repacked(batch: memoryview, header: BatchHeader, codec: int) -> bytearray:
    return rebuild_batch(
        header._replace(attributes=header.attributes & ~LOG_APPEND_TIME), records_of(batch), codec=codec
    )


def _stamp(batch: memoryview, now_ms: int) -> None:
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, now_ms)
    patch_crc(batch)
