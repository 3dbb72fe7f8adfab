"""Record batches (v2) written and read the slow and obvious way, with every field open to a test's choice."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from penstock.log.batches import compression
from penstock.model import header_name

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
CRC_AT, CRC_FROM = 17, 21
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """The fields of a batch header that are not worked out from the records."""

    base_offset: int
    records: tuple[Record, ...]
    last_offset: int
    base_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    codec: int = compression.NONE
    flags: int = 0
    producer_id: int = -1


def varint(value: int) -> bytes:
    """The number as records hold it, also one that is larger than any record may hold."""
    bits = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def encode_record(record: Record, base_offset: int, base_timestamp_ms: int) -> bytes:
    body = b"\0" + varint(record.timestamp_ms - base_timestamp_ms) + varint(record.offset - base_offset)
    body += _sized(record.key) + _sized(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += _sized(name.encode()) + _sized(value)
    return varint(len(body)) + body


def encode(batch: Batch) -> bytes:
    plain = b"".join(encode_record(record, batch.base_offset, batch.base_timestamp_ms) for record in batch.records)
    return frame(batch, compression.compress(batch.codec, plain), len(batch.records))


def frame(batch: Batch, payload: bytes, count: int) -> bytes:
    """A batch with any bytes as its records section, and a checksum that is right."""
    header = HEADER.pack(
        batch.base_offset,
        HEADER_BYTES - 12 + len(payload),
        0,
        2,
        0,
        batch.codec | batch.flags,
        batch.last_offset - batch.base_offset,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        -1 if batch.producer_id < 0 else 0,
        -1 if batch.producer_id < 0 else 0,
        count,
    )
    return with_crc(header + payload)


def with_crc(batch: bytes) -> bytes:
    """The same batch with the checksum that its bytes call for."""
    return batch[:CRC_AT] + struct.pack(">I", crc32c(batch[CRC_FROM:])) + batch[CRC_FROM:]


def decode(batches: bytes) -> Iterator[Record]:
    """Every record that a reader may see, one byte after the other. Raises Refused for anything that is not right."""
    at = 0
    while at < len(batches):
        base, length, _, magic, crc, flags, last_delta, first_ms, max_ms, _, _, _, count = HEADER.unpack_from(
            batches, at
        )
        refuse_unless(magic == 2 and crc == crc32c(batches[at + CRC_FROM : at + 12 + length]))
        payload = batches[at + HEADER_BYTES : at + 12 + length]
        at += 12 + length
        if flags & CONTROL or count == 0:
            continue
        reader = _Reader(compression.decompress(flags & 7, payload, 1 << 30))
        offset_before = base - 1
        for _ in range(count):
            record = reader.record(base, first_ms)
            refuse_unless(offset_before < record.offset <= base + last_delta)
            offset_before = record.offset
            if flags & LOG_APPEND_TIME:
                record = Record(record.offset, max_ms, record.key, record.value, record.headers)
            yield record
        refuse_unless(reader.at == len(reader.data))


class Refused(Exception):
    """The batches are not what they say they are."""


def refuse_unless(right: bool) -> None:
    if not right:
        raise Refused


def consecutive(base_offset: int, values: Sequence[bytes | None], **fields: int) -> Batch:
    """A batch of keyless records with no gaps, one millisecond apart."""
    records = tuple(Record(base_offset + i, 1_000 + i, None, value) for i, value in enumerate(values))
    last = base_offset + len(values) - 1
    return Batch(base_offset, records, last, 1_000, 1_000 + len(values) - 1, **fields)


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int = 0

    def number(self, bits: int) -> int:
        value = shift = 0
        while True:
            refuse_unless(self.at < len(self.data))
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                refuse_unless(value < 1 << bits)
                return (value >> 1) ^ -(value & 1)
            refuse_unless(shift < bits)

    def sized(self) -> bytes | None:
        length = self.number(32)
        if length < 0:
            return None
        refuse_unless(self.at + length <= len(self.data))
        self.at += length
        return self.data[self.at - length : self.at]

    def record(self, base_offset: int, base_timestamp_ms: int) -> Record:
        length = self.number(32)
        refuse_unless(0 < length <= len(self.data) - self.at)
        body = _Reader(self.data[self.at : self.at + length], at=1)
        self.at += length
        timestamp_ms = (base_timestamp_ms + body.number(64) + 2**63) % 2**64 - 2**63
        offset = base_offset + body.number(32)
        key, value = body.sized(), body.sized()
        count = body.number(32)
        refuse_unless(0 <= count <= length)
        headers = tuple((body.name(), body.sized()) for _ in range(count))
        refuse_unless(body.at == length)
        return Record(offset, timestamp_ms, key, value, headers)

    def name(self) -> str:
        name = self.sized()
        refuse_unless(name is not None)
        return header_name(name or b"")


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
