"""A partition in a folder, driven the short way: what the tests of the storage engine have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.log.batches.batch import (
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    NewRecord,
    StoredRecord,
    build_batch,
    read_header,
    records_of,
)
from penstock.log.compacting import cleaning, compaction
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.disk import Disk
from penstock.log.partition import PartitionLog
from penstock.log.recovery import RecoveryReport
from penstock.log.segment import Resources

NOW_MS = 1_700_000_000_000
SMALL = {"internal.segment.bytes": "500", "index.interval.bytes": "200"}
"""Segments of a few batches each, and indexes that skip some of them."""

RETENTION_MS = 1000
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(RETENTION_MS),
    "segment.ms": "100000000000",
}
"""Compacted as soon as there is anything to compact; segments are closed only when a test says so."""

Pair = tuple[bytes | None, bytes | None]


class QuickDisk(Disk):
    """A disk that does not wait. No test cuts the power, and what is written survives everything else."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


def reopen(
    folder: Path, settings: dict[str, str] | None = None, disk: Disk | None = None
) -> tuple[PartitionLog, RecoveryReport]:
    config = TopicConfig.parse(SMALL if settings is None else settings)
    return PartitionLog.open("topic", 0, folder, config, Resources(disk or QuickDisk()))


def open_log(folder: Path, settings: dict[str, str] | None = None, disk: Disk | None = None) -> PartitionLog:
    return reopen(folder, settings, disk)[0]


def batch_of(
    pairs: Sequence[Pair],
    *,
    at_ms: int = NOW_MS,
    codec: int = 0,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    transactional: bool = False,
) -> memoryview:
    """A client's batch with one record per pair of key and value, a millisecond apart."""
    records = [NewRecord(at_ms + number, key, value) for number, (key, value) in enumerate(pairs)]
    built = build_batch(
        records,
        codec=codec,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    return memoryview(built)


def put(log: PartitionLog, batch: memoryview, now_ms: int = NOW_MS) -> int:
    """Append, write and show one batch; gives its base offset."""
    offset = log.append(batch, now_ms).base_offset
    log.write()
    log.publish(log.end_offset)
    return offset


def send(log: PartitionLog, *pairs: Pair) -> int:
    """Append one batch of these pairs of key and value; gives its base offset."""
    return put(log, batch_of(list(pairs)))


def dirty_again(log: PartitionLog) -> None:
    """Give compaction something to do."""
    send(log, (b"other", b"1"))
    log.roll()


def put_values(log: PartitionLog, count: int, *, per_batch: int = 1, start_ms: int = NOW_MS) -> list[StoredRecord]:
    """Append records with counted keys and values; gives what must be read back."""
    expected: list[StoredRecord] = []
    for first in range(0, count, per_batch):
        numbers = range(log.end_offset, log.end_offset + min(per_batch, count - first))
        pairs: list[Pair] = [(b"key-%d" % number, b"value-%d" % number) for number in numbers]
        at_ms = start_ms + numbers[0]
        put(log, batch_of(pairs, at_ms=at_ms))
        expected += [
            StoredRecord(number, at_ms + delta, key, value)
            for delta, (number, (key, value)) in enumerate(zip(numbers, pairs, strict=True))
        ]
    return expected


def records_from(log: PartitionLog, offset: int, limit: int | None = None, max_bytes: int = 700) -> list[StoredRecord]:
    """Every record from an offset on, fetched as a client would, a slice at a time."""
    limit = log.high_watermark if limit is None else limit
    found: list[StoredRecord] = []
    while (piece := log.read(offset, max_bytes, limit)) is not None:
        data = os.pread(piece.file.fd, piece.length, piece.position)
        before = offset
        for batch in whole_batches(data):
            header = read_header(batch)
            found += [record for record in records_of(batch) if record.offset >= offset]
            offset = header.next_offset
        assert offset > before, "a slice without a whole batch makes a reader wait for ever"
    return found


def one_slice(log: PartitionLog, offset: int) -> list[StoredRecord]:
    """What a fetch at this offset gives."""
    piece = log.read(offset, 1, log.high_watermark)
    if piece is None:
        return []
    data = os.pread(piece.file.fd, piece.length, piece.position)
    return [record for batch in whole_batches(data) for record in records_of(batch) if record.offset >= offset]


def headers_from(log: PartitionLog, offset: int, max_bytes: int = 700) -> list[tuple[BatchHeader, bytes]]:
    """Every batch from an offset on up to the high watermark."""
    found: list[tuple[BatchHeader, bytes]] = []
    while (piece := log.read(offset, max_bytes, log.high_watermark)) is not None:
        data = os.pread(piece.file.fd, piece.length, piece.position)
        for batch in whole_batches(data):
            found.append((read_header(batch), batch))
            offset = found[-1][0].next_offset
    return found


def committed(log: PartitionLog) -> list[StoredRecord]:
    """What a reader of committed records sees."""
    found: list[StoredRecord] = []
    for header, batch in headers_from(log, log.log_start_offset):
        aborted = any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in log.aborted.between(header.base_offset, header.next_offset)
        )
        if not header.is_control and not (header.is_transactional and aborted):
            found += [record for record in records_of(batch) if record.offset < log.last_stable_offset]
    return found


def end_transaction(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0, now_ms: int = NOW_MS) -> int:
    offset = log.append_marker(
        producer_id=producer_id, producer_epoch=epoch, commit=commit, coordinator_epoch=0, now_ms=now_ms
    )
    log.write()
    log.publish(log.end_offset)
    return offset


def compact(
    log: PartitionLog, now_ms: int = NOW_MS, *, dedupe_buffer_bytes: int = cleaning.DEDUPE_BUFFER_BYTES
) -> cleaning.Cleaned | None:
    """Compact if there is anything to do."""
    plan = compaction.plan(log, now_ms, dedupe_buffer_bytes=dedupe_buffer_bytes)
    if plan is None:
        return None
    cleaned = cleaning.run(plan, disk=log.resources.disk)
    assert compaction.install(log, cleaned)
    return cleaned


def read_all(log: PartitionLog) -> list[StoredRecord]:
    return records_from(log, log.log_start_offset)


def whole_batches(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = read_header(data, position).size_bytes
        if position + size > len(data):
            return
        yield data[position : position + size]
        position += size


class Snapshot:
    """The files of a folder as they were, to go back to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = {path.name: path.read_bytes() for path in folder.iterdir()}

    def restore(self) -> None:
        for path in self._folder.iterdir():
            if path.name not in self._contents:
                path.unlink()
        for name, content in self._contents.items():
            path = self._folder / name
            if not path.exists() or path.read_bytes() != content:
                path.unlink(missing_ok=True)  # whoever has the old file open keeps it
                path.write_bytes(content)


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))
