"""Checking batches before they are appended, and rewriting them as the topic's configs require."""

from __future__ import annotations

import struct
from typing import Final

from penstock.errors import InvalidRecordError, InvalidTimestampError
from penstock.log.batches.batch import (
    LOG_APPEND_TIME,
    patch_crc,
    read_header,
    rebuild_batch,
    records_of,
)
from penstock.log.batches.compression import GZIP, LZ4, NAMES, NONE, ZSTD
from penstock.log.configs.topic_config import TopicConfig

_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_POSITION: Final = 21
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35
_KEEP_CODEC: Final = "producer"
_CODECS: Final = {name: number for number, name in enumerate(NAMES)} | {"uncompressed": 0}


class Admission:
    """The rules of one topic, prepared so that the common batch passes with two comparisons."""

    __slots__ = ("_codec", "_level", "_needs_keys", "_stamps", "after_max_ms", "before_max_ms", "max_bytes", "rewrites")

    def __init__(self, config: TopicConfig) -> None:
        self.max_bytes = config.max_message_bytes
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.before_max_ms = config.message_timestamp_before_max_ms
        self._stamps = config.message_timestamp_type == "LogAppendTime"
        self._codec = None if config.compression_type == _KEEP_CODEC else _CODECS[config.compression_type]
        levels = {
            GZIP: config.compression_gzip_level,
            LZ4: config.compression_lz4_level,
            ZSTD: config.compression_zstd_level,
        }
        self._level = levels.get(self._codec or NONE)
        self._needs_keys = config.compacts
        self.rewrites = self._stamps or self._codec is not None
        """Whether `rewrite` has anything to do for this topic."""

    def check_times(self, base_timestamp: int, max_timestamp: int, now_ms: int) -> None:
        """Raise if a record's own timestamp differs more from the broker's clock than the topic allows."""
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

    def check_keys(self, batch: memoryview) -> None:
        """Raise InvalidRecordError for a batch with records without a key, if the topic needs keys."""
        if not self._needs_keys:
            return
        keyless = [number for number, record in enumerate(records_of(batch)) if record.key is None]
        raise InvalidRecordError(
            f"{len(keyless)} records of the batch have no key; this topic is compacted, and compaction keeps the last "
            "record of each key. Send a key, or set cleanup.policy=delete.",
            keyless,
        )

    def rewrite(self, batch: memoryview, now_ms: int) -> memoryview:
        """Rewrite the batch for this topic: recompress with the topic's codec, set the append time."""
        header = read_header(batch)
        if self._codec is not None and self._codec != header.codec:
            plain = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME)
            batch = memoryview(rebuild_batch(plain, records_of(batch), codec=self._codec, level=self._level))
        if self._stamps:
            _stamp(batch, now_ms)
        return batch


def _stamp(batch: memoryview, now_ms: int) -> None:
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, now_ms)
    patch_crc(batch)
