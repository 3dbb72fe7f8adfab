"""One partition: an append-only sequence of batches in segments, and the state derived from them.

Appending has three steps, so that the broker can combine many requests into one write and many writes into one sync:
`append` checks a batch, assigns its offset and stages it; `write` writes everything staged to the file, after which it
survives a killed process; a `SyncTicket` syncs it to the disk, after which it survives a power cut. Readers see records
up to the high watermark, which the owner moves with `publish` once the records are as safe as their producer asked.
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import (
    CorruptBatchError,
    InvalidRecordError,
    LogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
)
from penstock.log.aborted import AbortedTransaction, AbortedTransactions
from penstock.log.admission import Admission
from penstock.log.batches.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAX_DECOMPRESSED_BYTES,
    TRANSACTIONAL,
    build_marker,
)
from penstock.log.batches.compression import decompress
from penstock.log.batches.framing import check_records
from penstock.log.checkpoint import PartitionCheckpoint, save_checkpoint
from penstock.log.configs.topic_config import TopicConfig
from penstock.log.disk import Disk
from penstock.log.lookup import Slice, first_at_or_after, largest_timestamp, read_slice
from penstock.log.producers import ProducerStates
from penstock.log.recovery import RecoveryReport, finish_interrupted, recover, rewind
from penstock.log.retention import delete_before, expire
from penstock.log.segment import Resources, Segment


def age_limit_ms(config: TopicConfig) -> int:
    """How much later than the first record of a segment its last may be, less a random part if the topic has jitter.

    A compacted topic must obey `max.compaction.lag.ms`, and only sealed segments are compacted.
    """
    limit_ms = config.segment_ms
    if config.compacts:
        limit_ms = min(limit_ms, config.max_compaction_lag_ms)
    return limit_ms - random.randint(0, min(config.segment_jitter_ms, limit_ms))


class SyncTicket:
    """What to sync so that everything before `offset` survives a power cut. `run` may block in a thread."""

    __slots__ = ("_disk", "_files", "_folder", "newest", "offset")

    def __init__(self, disk: Disk, segments: Sequence[Segment], folder: Path | None, offset: int) -> None:
        self._disk = disk
        self._files = [segment.file() for segment in segments]
        self._folder = folder
        self.newest = segments[-1]
        self.offset = offset

    def run(self) -> None:
        for file in self._files:
            self._disk.sync(file.fd)
        if self._folder is not None:
            self._disk.sync_folder(self._folder)
            self._disk.sync_folder(self._folder.parent)


logger = logging.getLogger(__name__)

_unpack_header: Final = HEADER.unpack_from
_pack_prefix: Final = struct.Struct(">qii").pack_into
_MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
_NOT_FOR_CLIENTS: Final = CONTROL | DELETE_HORIZON


class Appended(NamedTuple):
    base_offset: int
    log_append_time: int
    """-1 unless the topic stamps records with the broker's time."""


class PartitionLog:
    """One partition; see the module. Not thread-safe: one thread owns it; only `SyncTicket.run` may run elsewhere."""

    def __init__(self, topic: str, partition: int, folder: Path, config: TopicConfig, resources: Resources) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.folder = folder
        self.resources = resources
        self.segments: list[Segment] = []
        self.log_start_offset = 0
        self.end_offset = 0
        """The offset of the next record."""
        self.high_watermark = 0
        """Readers see the records before it."""
        self.written_offset = 0
        """Everything before it is in the files, and survives a killed process."""
        self.synced_offset = 0
        """Everything before it survives a power cut."""
        self.clean_offset = 0
        self.producers = ProducerStates(self.name)
        self.aborted = AbortedTransactions(folder)
        self.waiters: set[Callable[[], None]] = set()
        """Called when the high watermark moves. The caller that adds a callback removes it."""
        self.failed: str | None = None
        """Why this partition refuses writes until restart, if it does."""
        self.checkpointed_offset = 0
        self._unsynced: list[Segment] = []
        self._folder_unsynced = False
        self._unsynced_since_ms: int | None = None
        self._undo_point: PartitionCheckpoint | None = None
        """The state that the last refused write was rolled back to; the next checkpoint on disk replaces it."""
        self._staged = False
        self._lost: StorageError | None = None
        """Set when staged batches were lost before their `write`, which must then report it."""
        self.config = config
        self.admission = Admission(config)
        self._roll_after_ms = age_limit_ms(config)

    @classmethod
    def open(
        cls, topic: str, partition: int, folder: Path, config: TopicConfig, resources: Resources
    ) -> tuple[PartitionLog, RecoveryReport]:
        """Open the partition in a folder, and recover it if it was not closed; without a folder it is empty."""
        log = cls(topic, partition, folder, config, resources)
        if not resources.read_only:
            finish_interrupted(folder, resources)
        report = recover(log)
        if report.scanned_bytes and not resources.read_only:
            # Readers are about to see what a killed process left in the page cache: sync it first.
            log.sync()
            if log.checkpointed_offset < 0 and log.clean_offset:
                # How far the log is clean was restored from its indexes. Store it before an index is lost, too.
                log.checkpoint(durable=False)
        log.high_watermark = log.end_offset
        return log, report

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        self.admission = Admission(config)
        self._roll_after_ms = age_limit_ms(config)

    # Appending.

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Stage one batch of a client and assign its offset. Nothing is written yet: see `write`.

        The bytes of the batch are patched in place and must not change until `write` returns.
        """
        self._check_writable()
        size = len(batch)
        if size < HEADER_BYTES:
            raise CorruptBatchError(f"{self.name}: a batch of {size} bytes is shorter than its own header")
        (base, length, _, magic, crc, attributes, last_delta, base_ts, max_ts, producer_id, epoch, sequence, count) = (
            _unpack_header(batch)
        )
        admission = self.admission
        if magic != MAGIC or length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            raise CorruptBatchError(f"{self.name}: not a record batch of format version 2")
        if length + LENGTH_PREFIX_BYTES != size:
            raise InvalidRecordError(f"{self.name}: the records must be exactly one batch")
        if crc32c(batch[CRC_START:]) != crc:
            raise CorruptBatchError(f"{self.name}: the batch does not match its checksum; it was damaged in transit")
        if base or count < 1 or last_delta != count - 1 or attributes & _NOT_FOR_CLIENTS:
            raise InvalidRecordError(
                f"{self.name}: a producer's batch must hold records with consecutive offsets from 0 on, and no markers"
            )
        if size > admission.max_bytes:
            raise RecordTooLargeError(
                f"{self.name}: a batch of {size} bytes is larger than max.message.bytes={admission.max_bytes}"
            )
        if max_ts - now_ms > admission.after_max_ms or now_ms - base_ts > admission.before_max_ms:
            admission.check_times(base_ts, max_ts, now_ms)
        codec = attributes & CODEC_MASK
        section = batch[HEADER_BYTES:]
        plain = decompress(codec, section, MAX_DECOMPRESSED_BYTES) if codec else section
        if not check_records(plain, count):
            admission.check_keys(batch)
        append_time = -1
        if admission.rewrites:
            batch = admission.rewrite(batch, now_ms)
            (_, length, _, _, _, attributes, _, _, max_ts, _, _, _, _) = _unpack_header(batch)
            size = len(batch)
            if self.config.message_timestamp_type == "LogAppendTime":
                append_time = now_ms
        if producer_id >= 0:
            transactional = attributes & TRANSACTIONAL != 0
            duplicate = self.producers.check(producer_id, epoch, sequence, last_delta, transactional)
            if duplicate is not None:
                return Appended(duplicate.first_offset, -1 if append_time < 0 else duplicate.timestamp_ms)
        offset = self.end_offset
        _pack_prefix(batch, 0, offset, length, 0)
        self._active_for(size, max_ts, offset + last_delta).stage(batch, offset, offset + last_delta, max_ts)
        self._staged = True
        if producer_id >= 0:
            self.producers.record(producer_id, epoch, sequence, last_delta, offset, max_ts, transactional)
        self.end_offset = offset + count
        return Appended(offset, append_time)

    def _check_writable(self) -> None:
        if self.failed is not None:
            raise StorageError(self.failed)
        if self._lost is not None:
            raise self._lost

    def append_internal(self, batch: bytearray) -> int:
        """Stage a batch of the broker itself, such as a coordinator's state. Returns its base offset."""
        self._check_writable()
        (_, length, _, _, _, attributes, last_delta, _, max_ts, producer_id, epoch, sequence, _) = _unpack_header(batch)
        transactional = attributes & TRANSACTIONAL != 0
        if producer_id >= 0:
            self.producers.check_epoch(producer_id, epoch, transactional)
        offset = self.end_offset
        _pack_prefix(batch, 0, offset, length, 0)
        active = self._active_for(len(batch), max_ts, offset + last_delta)
        active.stage(memoryview(batch), offset, offset + last_delta, max_ts)
        self._staged = True
        if producer_id >= 0:
            self.producers.record(producer_id, epoch, sequence, last_delta, offset, max_ts, transactional)
        self.end_offset = offset + last_delta + 1
        return offset

    def append_marker(
        self, *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, now_ms: int
    ) -> int:
        """Stage the marker that ends a producer's transaction here. Returns its offset."""
        self._check_writable()
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        batch = build_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        offset = self.end_offset
        _pack_prefix(batch, 0, offset, len(batch) - LENGTH_PREFIX_BYTES, 0)
        self._active_for(len(batch), now_ms, offset).stage(memoryview(batch), offset, offset, now_ms)
        self._staged = True
        self.end_offset = offset + 1
        first_offset = self.producers.end_transaction(
            producer_id, producer_epoch, offset, coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms
        )
        if first_offset is not None and not commit:
            entry = AbortedTransaction(producer_id, first_offset, offset)
            self.aborted.add(entry)
            self._on_disk(lambda: self.aborted.append_to_file(entry), "the index of aborted transactions")
        return offset

    def write(self) -> None:
        """Write everything staged to the file. Raises StorageError if the disk refuses; then none of it is written."""
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error
        if self._staged:
            self._write_staged()

    def _write_staged(self) -> None:
        self._staged = False
        active = self.segments[-1]
        try:
            active.write_staged()
        except StorageError:
            self._undo_staged()
            raise
        except OSError as error:
            self._undo_staged()
            raise self.refuse_writes(f"the disk failed: {error}") from error
        self.written_offset = self.end_offset
        if not self._unsynced or self._unsynced[-1] is not active:
            self._unsynced.append(active)

    def _undo_staged(self) -> None:
        """Roll back to what the files say. The first time is slow; while the disk keeps refusing, little has to be
        read."""
        high_watermark = self.high_watermark
        try:
            if self._undo_point is None:
                recover(self)
            else:
                rewind(self, self._undo_point)
            self._undo_point = self._state()
        except (LogError, OSError) as error:
            self.refuse_writes(f"the disk refused a write, and the log could not be reread: {error}")
        self.high_watermark = min(high_watermark, self.end_offset)

    def flush_due(self, now_ms: int) -> bool:
        """Whether the oldest unsynced write is older than the topic's `flush.ms`."""
        if self.synced_offset >= self.end_offset or self.failed is not None:
            self._unsynced_since_ms = None
            return False
        if self._unsynced_since_ms is None:
            self._unsynced_since_ms = now_ms
        return now_ms - self._unsynced_since_ms >= self.config.flush_ms

    def note_recovered(self) -> None:
        """Note that recovery read batches that may not be on the disk yet: they are synced with the next ones."""
        self.written_offset = self.end_offset
        self._unsynced = [segment for segment in self.segments if segment.next_offset > self.synced_offset]
        self._folder_unsynced = True

    def _active_for(self, size: int, timestamp: int, last_offset: int) -> Segment:
        """The segment for a batch; starts a new one if the topic's configs require it."""
        if self.segments:
            active = self.segments[-1]
            used = active.size + active.staged_bytes
            if not used or (
                used + size <= self.config.segment_bytes
                and timestamp - active.first_timestamp <= self._roll_after_ms
                and last_offset - active.base_offset <= _MAX_RELATIVE_OFFSET
                and active.index_bytes < self.config.segment_index_bytes
            ):
                return active
        return self.roll()

    def roll(self) -> Segment:
        """Seal the active segment and start a new one. An empty one stays."""
        if self.segments and self.segments[-1].base_offset == self.end_offset:
            return self.segments[-1]
        if self._staged:
            try:
                self._write_staged()
            except StorageError as error:
                self._lost = StorageError(str(error))
                raise
        self.resources.check_owner()
        segment = Segment(self.folder, self.end_offset, self.resources, self.config.index_interval_bytes)
        if not self.segments:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{self.folder} could not be created: {error.strerror}") from error
        self.resources.files.get(segment.path, write=True)
        if self.segments:
            try:
                self.segments[-1].seal()
            except OSError as error:
                raise self.refuse_writes(
                    f"{self.name}: {self.segments[-1].path} cannot be closed ({error.strerror}): the partition accepts "
                    "no more writes until the file is restored and the broker is restarted"
                ) from error
        self._folder_unsynced = True
        self.segments.append(segment)
        self._roll_after_ms = age_limit_ms(self.config)
        return segment

    # Durability and visibility.

    def sync_ticket(self) -> SyncTicket | None:
        """What to sync so that everything written so far is safe; None if it already is."""
        if not self._unsynced:
            return None
        folder = self.folder if self._folder_unsynced else None
        return SyncTicket(self.resources.disk, self._unsynced, folder, self.written_offset)

    def synced(self, ticket: SyncTicket) -> None:
        """Note that a sync succeeded. What was written during it stays unsynced until the next one."""
        self.synced_offset = max(self.synced_offset, ticket.offset)
        if self.segments and ticket.newest is self.segments[-1]:
            self._folder_unsynced = False
        self._unsynced = [
            segment for segment in self._unsynced if min(segment.next_offset, self.written_offset) > ticket.offset
        ]

    def sync_failed(self, error: OSError) -> StorageError:
        """Refuse writes until a restart: after a failed sync it is unknown what the kernel has discarded."""
        return self.refuse_writes(
            f"{self.name}: the disk could not sync ({error.strerror}); the partition accepts no more "
            "writes until the broker is restarted on a healthy disk. What was acknowledged before is safe."
        )

    def refuse_writes(self, reason: str) -> StorageError:
        if self.failed is None:
            self.failed = reason
            logger.error("%s", reason, extra={"partition": self.name})
        return StorageError(reason)

    def publish(self, offset: int) -> None:
        """Move the high watermark, and wake those who wait for records."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            for wake in tuple(self.waiters):
                wake()

    @property
    def last_stable_offset(self) -> int:
        return self.producers.last_stable_offset(self.high_watermark, self.log_start_offset)

    def sync(self) -> None:
        ticket = self.sync_ticket()
        if ticket is not None:
            try:
                ticket.run()
            except OSError as error:
                raise self.sync_failed(error) from error
            self.synced(ticket)

    def checkpoint(self, *, durable: bool = True) -> None:
        """Store where recovery may start. Syncs first: only what is on the disk needs no recovery.

        A power cut may lose a checkpoint that is not `durable`: then recovery only has more to read.
        """
        if not self.segments and self.log_start_offset == 0:
            return
        if self.failed is not None:
            raise StorageError(self.failed)
        self.resources.check_owner()
        self.write()
        self.sync()
        self.aborted.drop_before(self.log_start_offset)
        self._on_disk(lambda: self.aborted.sync(self.resources.disk), "the index of aborted transactions", must=True)
        if self.segments:
            self.segments[-1].save_index()
        state = self._state()
        disk = self.resources.disk
        self._on_disk(lambda: save_checkpoint(self.folder, state, disk, durable=durable), "the checkpoint", must=True)
        self.checkpointed_offset = self.end_offset
        self._undo_point = None

    def _state(self) -> PartitionCheckpoint:
        active = self.segments[-1] if self.segments else None
        return PartitionCheckpoint(
            log_start_offset=self.log_start_offset,
            recovery_offset=self.end_offset,
            recovery_segment=active.base_offset if active else self.end_offset,
            recovery_position=active.size if active else 0,
            max_timestamp=active.max_timestamp if active else -1,
            first_timestamp=active.first_timestamp if active else -1,
            clean_offset=self.clean_offset,
            producers=self.producers.snapshot(),
            aborted_checksum=self.aborted.checksum(),
        )

    def write_aborted(self) -> None:
        self._on_disk(self.aborted.write_file, "the index of aborted transactions")

    def _on_disk(self, action: Callable[[], None], what: str, *, must: bool = False) -> None:
        try:
            action()
        except OSError as error:
            message = f"{self.name}: {what} could not be written: {error.strerror}"
            if must:
                raise StorageError(message) from error
            logger.warning("%s; it will be rebuilt from the log", message, extra={"partition": self.name})

    # Reading.

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def segment_for(self, offset: int) -> Segment:
        """The segment that holds `offset`, or the last one before it."""
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return self.segments[max(low - 1, 0)]

    def check_offset(self, offset: int, limit: int) -> None:
        if not self.log_start_offset <= offset <= limit:
            raise OffsetOutOfRangeError(self.name, offset, self.log_start_offset, limit)

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool = True) -> Slice | None:
        """Batches from the one that holds `offset`, up to `limit`; None if there is nothing to read yet.

        At most `max_bytes`, so the last batch may be cut; with `at_least_one` the first is whole, however large it is.
        Raises OffsetOutOfRangeError, and CorruptSegmentError if the batch that holds `offset` is damaged.
        """
        return read_slice(self, offset, max_bytes, limit, at_least_one=at_least_one)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after a time; None if all are older."""
        return first_at_or_after(self, timestamp_ms)

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the largest timestamp; None if the partition is empty."""
        return largest_timestamp(self)

    # Deletion.

    def delete_records(self, before_offset: int) -> int:
        """Delete the records before the offset, and the segments that hold only such records. Returns the new log
        start."""
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRangeError(self.name, before_offset, self.log_start_offset, self.high_watermark)
        delete_before(self, before_offset)
        return self.log_start_offset

    def expire(self, now_ms: int) -> int:
        """Delete what the topic's retention no longer keeps. Returns the number of deleted segments."""
        return expire(self, now_ms)

    def close(self) -> None:
        """Write, sync and checkpoint everything, so that the next open reads only the checkpoint."""
        if self.failed is None and (self._staged or self.checkpointed_offset != self.end_offset):
            self.checkpoint()
        for segment in self.segments:
            if not segment.sealed:
                segment.save_index()
            self.resources.forget(segment)
