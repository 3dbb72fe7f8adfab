"""The files of a stopped broker, looked at and spoilt from outside, with nothing of the broker's own code."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import LENGTH_AT, values_in

PREFIX_BYTES: Final = 12
LAST_OFFSET_DELTA_AT: Final = 23
COUNT_AT: Final = 57


@dataclass(frozen=True, slots=True)
class StoredBatch:
    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    count: int
    """Its records: fewer than its offsets once it has been compacted."""


def batches_in(segment: Path) -> list[StoredBatch]:
    """Where the batches of a segment that is whole stand."""
    data = segment.read_bytes()
    found: list[StoredBatch] = []
    position = 0
    while position < len(data):
        (first,) = struct.unpack_from(">q", data, position)
        (length,) = struct.unpack_from(">i", data, position + LENGTH_AT)
        (delta,) = struct.unpack_from(">i", data, position + LAST_OFFSET_DELTA_AT)
        (count,) = struct.unpack_from(">i", data, position + COUNT_AT)
        found.append(StoredBatch(position, PREFIX_BYTES + length, first, first + delta, count))
        position += PREFIX_BYTES + length
    assert position == len(data)
    return found


def segments_of(data: Path, topic: str, partition: int) -> list[Path]:
    """The segment files of a partition, oldest first; the last is the one that was written to."""
    return sorted((data / f"{topic}-{partition}").glob("*.log"))


def flip_bit(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def read_partition(connection: wire.Connection, topic: str, partition: int, offset: int = 0) -> dict[int, bytes]:
    """Everything from the offset on, by offset, as long as no error comes; see `fetch_once`."""
    found: dict[int, bytes] = {}
    while True:
        code, records, end = fetch_once(connection, topic, partition, offset)
        assert code is ErrorCode.none, f"{topic}-{partition} from {offset}: {code.name}"
        found |= {at: value for at, value in records.items() if at >= offset}
        if not records or offset >= end:
            return found
        offset = max(records) + 1


def fetch_once(
    connection: wire.Connection, topic: str, partition: int, offset: int
) -> tuple[ErrorCode, dict[int, bytes], int]:
    """Error, records by offset (from the batch that holds the one asked for), and the end of the partition."""
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 10 << 20}
    wanted = {"topic": topic, "partitions": [part]}
    answer: Any = connection.call("fetch", 12, replica_id=-1, min_bytes=0, max_bytes=10 << 20, topics=[wanted])
    (read,) = answer.responses[0].partitions
    return read.error_code, dict(values_in(read.records)), read.high_watermark
