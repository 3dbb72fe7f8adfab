"""Converting message sets, the formats before record batches, into a batch. Only clients from before 2017 send them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from penstock.errors import CorruptBatchError
from penstock.log.batches.batch import MAX_DECOMPRESSED_BYTES, NO_TIMESTAMP, NewRecord, build_batch
from penstock.log.batches.compression import decompress

_ENTRY: Final = struct.Struct(">qi")
_CRC: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_CODEC_MASK: Final = 0x07


def to_batch(message_set: memoryview) -> memoryview:
    """One record batch with the messages of the set, in order and with their codec."""
    try:
        codec, records = _read(bytes(message_set), nested=False)
    except (struct.error, IndexError) as error:
        raise CorruptBatchError(f"the message set cannot be read: {error}") from error
    if not records:
        raise CorruptBatchError("the message set is empty")
    return memoryview(build_batch(records, codec=codec))


def _read(data: bytes, *, nested: bool) -> tuple[int, list[NewRecord]]:
    codec = 0
    records: list[NewRecord] = []
    for message in _messages(data):
        magic, attributes = message[4], message[5]
        if magic > 1:
            raise CorruptBatchError(f"message format {magic} does not belong in a message set")
        (crc,) = _CRC.unpack_from(message)
        if zlib.crc32(message[4:]) != crc:
            raise CorruptBatchError("a message does not match its checksum")
        timestamp, position = NO_TIMESTAMP, 6
        if magic == 1:
            (timestamp,) = _TIME.unpack_from(message, position)
            position += _TIME.size
        key, position = _read_bytes(message, position)
        value, _ = _read_bytes(message, position)
        if attributes & _CODEC_MASK:
            if nested or value is None:
                raise CorruptBatchError("a compressed message holds no messages")
            codec = attributes & _CODEC_MASK
            records += _read(decompress(codec, value, MAX_DECOMPRESSED_BYTES), nested=True)[1]
        else:
            records.append(NewRecord(timestamp, key, value))
    return codec, records


def _messages(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        _, size = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        if size < 14 or position + size > len(data):
            raise CorruptBatchError(f"a message claims {size} bytes where {len(data) - position} are left")
        yield data[position : position + size]
        position += size


def _read_bytes(message: bytes, position: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(message, position)
    position += _LENGTH.size
    if length < 0:
        return None, position
    if position + length > len(message):
        raise CorruptBatchError(f"a field claims {length} bytes where {len(message) - position} are left")
    return message[position : position + length], position + length
