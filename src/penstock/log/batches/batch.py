"""The record batch, Kafka's format version 2: its layout, checks, decoding and encoding.

A batch is the unit of the log: it is written, checked, indexed, compressed and served whole. Its bytes on disk are its
bytes on the wire. The checksum covers everything after itself, so the two fields that the log fills in, base offset and
leader epoch, come before it and can be patched in place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import CorruptBatchError
from penstock.log.batches.compression import compress, decompress
from penstock.log.batches.varint import read_varint, write_varint

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and batch length: the fields that the length does not count."""
CRC_POSITION: Final = 17
CRC_START: Final = 21
"""The checksum covers the batch from here on, from the attributes to the last record."""
MAGIC: Final = 2
MAX_DECOMPRESSED_BYTES: Final = 128 << 20

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Set by compaction: the base timestamp field holds the time at which tombstones may be removed."""

_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

Headers = tuple[tuple[str, bytes | None], ...]


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class StoredRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def is_plausible(header: BatchHeader) -> bool:
    """Whether the fixed fields can be those of a batch. Cheap; does not check the checksum."""
    return (
        header.magic == MAGIC
        and header.length >= HEADER_BYTES - LENGTH_PREFIX_BYTES
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
        and header.record_count >= 0
    )


def check_crc(batch: memoryview) -> None:
    """Raise unless the bytes, which must be exactly one batch, match their checksum."""
    stored = int.from_bytes(batch[CRC_POSITION:CRC_START], "big")
    if crc32c(batch[CRC_START:]) != stored:
        raise CorruptBatchError("the checksum does not match the contents")


def records_of(batch: bytes | bytearray | memoryview) -> Iterator[StoredRecord]:
    """The records of one batch, decompressed. Raises CorruptBatchError if the contents are inconsistent."""
    header = read_header(batch)
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    data = bytes(body) if header.codec == 0 else decompress(header.codec, body, MAX_DECOMPRESSED_BYTES)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    base_timestamp = header.base_timestamp
    position = 0
    before = header.base_offset - 1
    try:
        for _ in range(header.record_count):
            length, position = read_varint(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise CorruptBatchError(f"a record claims {length} bytes where {len(data) - position} are left")
            record, reached = _read_record(data, position + 1, header.base_offset, base_timestamp)
            if reached != end:
                raise CorruptBatchError("a record's fields do not fill the length it claims")
            if not before < record.offset <= header.last_offset:
                raise CorruptBatchError(f"a record has offset {record.offset} where more than {before} was expected")
            before = record.offset
            yield record if append_time is None else record._replace(timestamp=append_time)
            position = end
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatchError(f"the records cannot be read: {error}") from error
    if position != len(data):
        raise CorruptBatchError(f"{len(data) - position} bytes follow the last record")


def _read_record(data: bytes, position: int, base_offset: int, base_timestamp: int) -> tuple[StoredRecord, int]:
    timestamp_delta, position = read_varint(data, position)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position)
    value, position = _read_bytes(data, position)
    header_count, position = read_varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    if header_count < 0 or header_count > len(data) - position:
        raise CorruptBatchError(f"a record claims {header_count} headers")
    for _ in range(header_count):
        name, position = _read_bytes(data, position)
        if name is None:
            raise CorruptBatchError("a header has no name")
        content, position = _read_bytes(data, position)
        headers.append((name.decode(errors="surrogateescape"), content))
    record = StoredRecord(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, tuple(headers))
    return record, position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise CorruptBatchError(f"a field claims {length} bytes where {len(data) - position} are left")
    return data[position:end], end


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = 0,
) -> bytearray:
    """Build a batch of consecutive records, ready to be appended."""
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    body = bytearray()
    for delta, record in enumerate(records):
        _write_record(body, record, record.timestamp - base_timestamp, delta)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes & ~CODEC_MASK | codec,
        last_offset_delta=max(len(records) - 1, 0),
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp for record in records), default=NO_TIMESTAMP),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal_batch(header, compress(codec, bytes(body)) if codec else body)


def rebuild_batch(
    header: BatchHeader, records: Iterable[StoredRecord], *, codec: int | None = None, level: int | None = None
) -> bytearray:
    """The batch with other records: some left out, or compressed with another codec and level.

    Base offset, last offset delta, producer and sequence stay, so the offsets do not change and the batch keeps its
    information about the producer.
    """
    kept = list(records)
    chosen = header.codec if codec is None else codec
    body = bytearray()
    for record in kept:
        _write_record(body, record, record.timestamp - header.base_timestamp, record.offset - header.base_offset)
    max_timestamp = header.max_timestamp
    if kept and not header.attributes & LOG_APPEND_TIME:
        max_timestamp = max(record.timestamp for record in kept)
    rebuilt = header._replace(
        attributes=header.attributes & ~CODEC_MASK | chosen, max_timestamp=max_timestamp, record_count=len(kept)
    )
    return seal_batch(rebuilt, compress(chosen, bytes(body), level) if chosen else body)


def seal_batch(header: BatchHeader, body: bytes | bytearray | memoryview) -> bytearray:
    """Header and body as one batch, with the length and the checksum filled in."""
    batch = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_PREFIX_BYTES))
    batch[HEADER_BYTES:] = body
    patch_crc(batch)
    return batch


def patch_crc(batch: bytearray | memoryview) -> None:
    """Recompute the checksum after a covered field was changed."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))


def _write_record(body: bytearray, record: NewRecord | StoredRecord, timestamp_delta: int, offset_delta: int) -> None:
    content = bytearray(1)
    write_varint(content, timestamp_delta)
    write_varint(content, offset_delta)
    _write_bytes(content, record.key)
    _write_bytes(content, record.value)
    write_varint(content, len(record.headers))
    for name, value in record.headers:
        _write_bytes(content, name.encode(errors="surrogateescape"))
        _write_bytes(content, value)
    write_varint(body, len(content))
    body += content


def _write_bytes(content: bytearray, data: bytes | None) -> None:
    if data is None:
        content.append(1)
    else:
        write_varint(content, len(data))
        content += data


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    record = NewRecord(
        timestamp_ms, _MARKER_KEY.pack(0, _COMMIT if commit else _ABORT), _MARKER_VALUE.pack(0, coordinator_epoch)
    )
    return build_batch(
        [record],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def marker_commits(batch: bytes | bytearray | memoryview) -> bool | None:
    """True for a commit marker, False for an abort marker, None for another kind of control batch."""
    for record in records_of(batch):
        if record.key is not None and len(record.key) >= _MARKER_KEY.size:
            kind = _MARKER_KEY.unpack_from(record.key)[1]
            return {_ABORT: False, _COMMIT: True}.get(kind)
    return None


def marker_coordinator_epoch(batch: bytes | bytearray | memoryview) -> int:
    for record in records_of(batch):
        if record.value is not None and len(record.value) >= _MARKER_VALUE.size:
            return int(_MARKER_VALUE.unpack_from(record.value)[1])
    return -1
