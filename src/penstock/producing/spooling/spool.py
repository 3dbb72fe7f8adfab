"""The spool: `abc.Buffer` in a folder."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.abc import Feature, Features
from penstock.errors import BufferFullError, ConfigError, ConnectionClosedError, CorruptSegmentError, StorageError
from penstock.log.batches.scan import WholeBatch
from penstock.log.disk import Disk
from penstock.model import NewRecord
from penstock.producing.buffers import BufferedRecord, NumberedRecords, size_of
from penstock.producing.settings import SpoolFlush
from penstock.producing.spooling.batches import build_many, build_one, place
from penstock.producing.spooling.folder import Holes, load_dropped, lock_spool, save_dropped, take_identity
from penstock.producing.spooling.position import PositionFile
from penstock.producing.spooling.recovery import SealedSegment, batches_of, is_dropped, records_of, recover
from penstock.producing.spooling.segment import WrittenSegment


class GroupFlush:
    """Group commit: the first waiter syncs for all that wait when it starts; the others wait for it or for the next
    one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reached = 0
        self._busy = False
        self.failed: str | None = None
        """Why nothing more can be made durable. A failed sync is never repeated: it is unknown what the operating
        system has discarded."""

    def wait_for(self, end: int, sync: Callable[[], int]) -> None:
        """Return once everything before `end` is durable. `sync` makes it durable and returns how far it got."""
        while True:
            with self._changed:
                while self._busy and self._reached < end and self.failed is None:
                    self._changed.wait()
                if self.failed is not None and self._reached < end:
                    raise StorageError(self.failed)
                if self._reached >= end:
                    return
                self._busy = True
            self._run(sync)

    def _run(self, sync: Callable[[], int]) -> None:
        reached = 0
        failed = "the sync was interrupted"
        try:
            reached = sync()
            failed = ""
        except OSError as error:
            failed = (
                f"the disk could not sync the spool ({error.strerror}): it accepts no more records until it is "
                "opened again. Earlier records are kept"
            )
        finally:
            with self._changed:
                self._busy = False
                self._reached = max(self._reached, reached)
                self.failed = self.failed or failed or None
                self._changed.notify_all()


logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 8 << 20
_LEAST_SEGMENT_BYTES: Final = 4 << 10
_MEMORY_BYTES: Final = 64 << 20
_LOAD_BYTES: Final = 1 << 20
_LEAP: Final = 1 << 40
"""How far record numbers jump when a spool is opened. A power cut may lose records that the stream already has; if
their numbers were reused, the new records would count as delivered. No producer puts that many records, and the numbers
suffice for eight million openings."""


class Spool:
    """Stores records in a folder until they are committed. One process owns the folder at a time.

    With flush="os", records survive the death of this process; with "fsync" they survive a power cut, at the cost of a
    disk sync shared by all waiting threads. Up to `memory_bytes` of records are also kept in memory, so that a fast
    stream is fed without reading the disk.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        flush: SpoolFlush = "os",
        limit_records: int = 1_000_000,
        limit_bytes: int = 256 << 20,
        segment_bytes: int | None = None,
        memory_bytes: int = _MEMORY_BYTES,
        disk: Disk | None = None,
    ) -> None:
        if flush not in ("os", "fsync"):
            raise ConfigError(f"flush={flush!r} of a spool must be 'os' or 'fsync'")
        if limit_records < 1 or limit_bytes < 1:
            raise ConfigError(
                f"a spool needs limits of at least 1 record and 1 byte, not {limit_records} and {limit_bytes}"
            )
        self.folder = Path(folder)
        self._limit_records = limit_records
        self._limit_bytes = limit_bytes
        self._segment_bytes = segment_bytes or max(_LEAST_SEGMENT_BYTES, min(SEGMENT_BYTES, limit_bytes // 8))
        self._memory_bytes = memory_bytes
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._flush = GroupFlush() if flush == "fsync" else None
        self._closed = False
        self._pid = os.getpid()
        self._lock_fd = lock_spool(self.folder)
        try:
            self._open()
        except BaseException:
            os.close(self._lock_fd)
            raise
        _living.add(self)

    def _open(self) -> None:
        identity = take_identity(self.folder, self._disk)
        self.id = identity.id
        """The name under which the stream stores the progress of this spool."""
        try:
            self._position = PositionFile(self.folder, self._disk)
        except OSError as error:
            raise StorageError(f"the spool {self.folder} cannot be opened: {error.strerror}") from error
        committed = self._position.committed
        self._dropped: Holes = load_dropped(self.folder)
        try:
            found = recover(self.folder, committed, self._dropped, self._disk)
        except BaseException:
            self._position.close()
            raise
        self.damaged: Sequence[CorruptSegmentError] = tuple(found.damaged)
        """Where records were lost to damage, as found when the spool was opened."""
        self._sealed = found.segments
        self._active: WrittenSegment | None = None
        self._count = found.records
        self._size = found.size_bytes
        self._kept = NumberedRecords(committed + 1)
        behind = max([committed + 1, *(segment.end for segment in found.segments)])
        self._end = max((identity.openings - 1) * _LEAP, -(-behind // _LEAP) * _LEAP)
        self._read_on = (0, 0, 0)
        """Where in the files the records after `_kept` are: segment base, position, expected number."""
        self._delete_committed()

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE})

    @property
    def waits_for_disk(self) -> bool:
        """Whether `put` waits until the disk has the record."""
        return self._flush is not None

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self._end

    def put(self, records: Sequence[NewRecord]) -> int:
        now_ms = time.time_ns() // 1_000_000
        if len(records) == 1:
            crc, rest = build_one(records[0], now_ms)
            size = size_of(records[0])
        else:
            crc, rest = build_many(records, now_ms)
            size = sum(map(size_of, records))
        with self._lock:
            self._check_open()
            if self._flush is not None and self._flush.failed is not None:
                raise StorageError(self._flush.failed)
            if self._count + len(records) > self._limit_records or self._size + size > self._limit_bytes:
                raise BufferFullError(
                    f"the spool {self.folder} holds {self._count} of {self._limit_records} records and {self._size} of "
                    f"{self._limit_bytes} bytes: {len(records)} more do not fit"
                )
            sequence = self._end
            batch = place(sequence, crc, rest)
            active = self._active
            if active is None or not active.has_room(len(batch)):
                active = self._roll(len(batch))
            active.write(batch)
            self._end = sequence + len(records)
            if self._kept.size_bytes < self._memory_bytes and (self._kept.end == sequence or not self._count):
                self._kept.add(sequence, records, size)
            self._count += len(records)
            self._size += size
        if self._flush is not None:
            self._flush.wait_for(sequence + len(records), self._sync)
        return sequence

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[BufferedRecord]:
        with self._lock:
            self._check_open()
            held = self._kept.peek(after, limit, limit_bytes)
            while not held and self._kept.end < self._end and self._load():
                held = self._kept.peek(after, limit, limit_bytes)
            return held

    def commit(self, through: int) -> None:
        with self._lock:
            self._check_open()
            through = min(through, self._end - 1)
            if through <= self._position.committed:
                return
            self._position.move(through)
            while True:  # ends: each time more is loaded, or nothing is left to load
                before = self._kept.size_bytes
                self._count -= self._kept.commit(min(through, self._kept.end - 1))
                self._size -= before - self._kept.size_bytes
                if self._kept.end > through or self._kept.end >= self._end or not self._load():
                    break
            self._kept.commit(through)
            if self._dropped and self._dropped[0][1] <= through + 1:
                self._save_dropped(tuple(hole for hole in self._dropped if hole[1] > through + 1))
            if self._sealed and self._sealed[0].end <= through + 1:
                try:
                    self._delete_committed()
                except OSError as error:
                    logger.warning("the spool %s could not delete a segment yet: %s", self.folder, error)

    def drop(self, count: int, after: int = -1) -> Sequence[BufferedRecord]:
        with self._lock:
            self._check_open()
            while (
                self._kept.end < self._end
                and len(self._kept.peek(after, count, self._limit_bytes)) < count
                and self._load()
            ):
                pass
            before = self._kept.size_bytes
            dropped = self._kept.drop(count, after)
            self._size -= before - self._kept.size_bytes
            self._count -= len(dropped)
            if dropped:
                hole = (dropped[0].sequence, dropped[-1].sequence + 1)
                last = self._dropped[-1] if self._dropped else (-1, -1)
                holes = (*self._dropped[:-1], (last[0], hole[1])) if last[1] == hole[0] else (*self._dropped, hole)
                self._save_dropped(holes)
            return dropped

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._size

    def close(self) -> None:
        """Release the folder. What is not committed stays for the next owner."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _living.discard(self)
        if os.getpid() != self._pid:
            return  # a forked process has released everything already
        try:
            if self._active is not None:
                self._seal()
            self._delete_committed()
            self._position.sync()
        except OSError as error:
            raise StorageError(f"the spool {self.folder} could not be closed: {error.strerror}") from error
        finally:
            self._position.close()
            os.close(self._lock_fd)

    # Files.

    def _roll(self, size: int) -> WrittenSegment:
        if self._active is not None:
            try:
                self._seal()
            except OSError as error:
                raise StorageError(f"the spool {self.folder} cannot create a segment: {error.strerror}") from error
        active = WrittenSegment(self.folder, self._end, max(self._segment_bytes, size), self._disk)
        if self._flush is not None:
            try:
                active.sync()
                self._disk.sync_folder(self.folder)
            except OSError as error:
                active.abandon()
                raise StorageError(f"{active.path} could not be synced: {error.strerror}") from error
        self._active = active
        return active

    def _seal(self) -> None:
        assert self._active is not None
        active, self._active = self._active, None
        self._sealed.append(SealedSegment(active.path, active.base, active.used, self._end))
        active.seal(durable=self._flush is not None)

    def _sync(self) -> int:
        """Sync everything that was put so far to the disk. Returns the number after it."""
        with self._lock:
            end, active = self._end, self._active
        if active is not None:
            active.sync()
        return end

    def _delete_committed(self) -> None:
        """Delete segments without records to deliver. The stored position must not be older than what is deleted."""
        committed = self._position.committed
        gone = [segment for segment in self._sealed if segment.end <= committed + 1]
        if not gone:
            return
        self._position.sync()
        for segment in gone:
            segment.path.unlink(missing_ok=True)
        self._sealed = [segment for segment in self._sealed if segment.end > committed + 1]

    def _save_dropped(self, holes: Holes) -> None:
        try:
            save_dropped(self.folder, holes, self._disk, durable=self._flush is not None)
        except OSError as error:
            raise StorageError(f"the spool {self.folder} could not record a drop: {error.strerror}") from error
        self._dropped = holes

    def _load(self) -> bool:
        """Read some records after those in memory, a limited number because others wait. Returns whether there were
        any."""
        found = False
        before = self._kept.size_bytes
        for segment in self._readable():
            base, position, expected = self._read_on
            if base != segment.base:
                position, expected = 0, segment.base
            for step in batches_of(segment, position, expected, self._disk):
                if isinstance(step, WholeBatch):
                    self._read_on = (segment.base, step.end, step.header.next_offset)
                    found = self._take_in(step) or found
                    if found and self._kept.size_bytes - before >= _LOAD_BYTES:
                        return True
            if found:
                return True
        return found

    def _readable(self) -> list[SealedSegment]:
        """The segments that may hold records after those in memory."""
        segments = list(self._sealed)
        if self._active is not None:
            segments.append(SealedSegment(self._active.path, self._active.base, self._active.used, self._end))
        return [segment for segment in segments if segment.end > self._kept.end]

    def _take_in(self, step: WholeBatch) -> bool:
        """Add the records of a batch that are new, not committed and not dropped."""
        first = step.header.base_offset
        if step.header.next_offset <= self._kept.end:
            return False
        records = records_of(step)
        left = [
            (sequence, record)
            for sequence, record in enumerate(records, first)
            if sequence >= self._kept.end and not is_dropped(sequence, self._dropped)
        ]
        if len(left) == len(records) and records:
            self._kept.add(first, records, sum(map(size_of, records)))
        else:
            for sequence, record in left:
                self._kept.add(sequence, [record], size_of(record))
        return bool(left)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the spool {self.folder} is closed: open it again")

    def _let_go_in_child(self) -> None:
        """Release the folder in a forked process, which is not the owner and must not keep the lock."""
        self._closed = True
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._position.close()
        if self._active is not None:
            self._active.abandon()
        os.close(self._lock_fd)

    def __repr__(self) -> str:
        return f"<Spool {self.folder}: {self._count} records>"


_living: weakref.WeakSet[Spool] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    for spool in list(_living):
        spool._let_go_in_child()


os.register_at_fork(after_in_child=_let_go_after_fork)
