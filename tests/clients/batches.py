"""Record batches to put into a Produce request by hand, built by kafka-python: nothing in them is our own code."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

CRC_AT: Final = 17
CHECKED_FROM: Final = 21
LENGTH_AT: Final = 8


def batch(
    values: Iterable[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    codec: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer_id, epoch, sequence, 1 << 20)
    for offset, value in enumerate(values):
        builder.append(offset, timestamp_ms, None, value, [])
    return bytes(builder.build())


def with_checksum(data: bytes) -> bytes:
    """The batch with the checksum that its present bytes ask for."""
    return data[:CRC_AT] + struct.pack(">I", crc32c(data[CHECKED_FROM:])) + data[CHECKED_FROM:]


def values_in(data: bytes | None) -> list[tuple[int, bytes]]:
    """Offset and value of every record in a run of batches, control batches left out."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while data and position < len(data):
        (length,) = struct.unpack_from(">i", data, position + LENGTH_AT)
        end = position + LENGTH_AT + 4 + length
        one = DefaultRecordBatch(data[position:end])
        if not one.is_control_batch:
            found += [(record.offset, record.value) for record in one]
        position = end
    return found
