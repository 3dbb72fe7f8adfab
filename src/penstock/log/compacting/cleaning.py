"""The work of compaction: read sealed segments, write cleaned files. No file in use is changed.

It gets its job as a `Plan`, which is plain data, and shares nothing with the partition: it may run in another thread or
process while the partition is written and read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import CorruptBatchError, CorruptSegmentError, LogError, StorageError
from penstock.log.aborted import AbortedTransaction
from penstock.log.batches.batch import DELETE_HORIZON, NO_TIMESTAMP, BatchHeader, marker_commits
from penstock.log.batches.scan import BadBytes, WholeBatch
from penstock.log.compacting.offset_map import OffsetMap
from penstock.log.compacting.outline import Outline, body_of, outlines_of, with_records, without_records
from penstock.log.compacting.swap import cleaned_path
from penstock.log.disk import Disk
from penstock.log.index import Seal, SparseIndex, seal_block
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Resources, Segment

_FLUSH_BYTES: Final = 1 << 20
_FLUSH_ENTRIES: Final = 1 << 16


class Mark(NamedTuple):
    size: int
    index_size: int
    max_timestamp: int
    first_timestamp: int


class CleanedSegment:
    """A segment written by compaction, under a temporary name. The owner must call `finish` or `discard`.

    It is durable before anything refers to it. Its index has an entry for every batch, because compacted offsets have
    gaps and nothing else could confirm them.
    """

    def __init__(self, folder: Path, base_offset: int, disk: Disk) -> None:
        self.base_offset = base_offset
        self.size = 0
        self._disk = disk
        self._paths = [cleaned_path(folder, base_offset, suffix) for suffix in (LOG_SUFFIX, INDEX_SUFFIX)]
        self._fds: list[int] = []
        self._buffers: list[bytes | bytearray | memoryview] = []
        self._buffered_bytes = 0
        self._index = SparseIndex(0)
        self._index_size = 0
        self._max_timestamp = NO_TIMESTAMP
        self._first_timestamp = NO_TIMESTAMP
        try:
            for path in self._paths:
                self._fds.append(disk.open(path, create=True))
                disk.truncate(self._fds[-1], 0)
        except OSError:
            self.discard()
            raise

    def append(self, batch: bytes | bytearray | memoryview, base_offset: int, max_timestamp: int) -> None:
        self._index.note(base_offset, self.size, self._max_timestamp)
        self._buffers.append(batch)
        self._buffered_bytes += len(batch)
        self.size += len(batch)
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        if self._first_timestamp == NO_TIMESTAMP:
            self._first_timestamp = max_timestamp
        if self._buffered_bytes >= _FLUSH_BYTES or len(self._index) >= _FLUSH_ENTRIES:
            self._flush()

    def mark(self) -> Mark:
        self._flush()
        return Mark(self.size, self._index_size, self._max_timestamp, self._first_timestamp)

    def go_back(self, mark: Mark) -> None:
        """Discard what was appended since the mark."""
        self._flush()
        self.size, self._index_size, self._max_timestamp, self._first_timestamp = mark
        for fd, size in zip(self._fds, (self.size, self._index_size), strict=True):
            self._disk.truncate(fd, size)

    def finish(self, next_offset: int) -> None:
        """Seal the segment: nothing follows up to `next_offset`. Both files are on the disk when this returns."""
        self._flush()
        seal = Seal(self.size, next_offset, self._max_timestamp, self._first_timestamp, 1)
        self._write_index(seal_block(seal))
        for fd in self._fds:
            self._disk.sync(fd)
        self._close()

    def discard(self) -> None:
        self._close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _flush(self) -> None:
        self._disk.write_all(self._fds[0], self._buffers, self.size - self._buffered_bytes)
        self._buffers, self._buffered_bytes = [], 0
        self._write_index(self._index.take_unsaved())
        self._index = SparseIndex(0)

    def _write_index(self, block: bytes) -> None:
        if block:
            self._disk.write_all(self._fds[1], [block], self._index_size)
            self._index_size += len(block)

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class DecidedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, deque[AbortedTransaction]] = {}
        self._with_records: set[AbortedTransaction] = set()
        self._committed: set[int] = set()
        """Producers with records since their last marker."""
        self.forgotten: list[AbortedTransaction] = []
        """Aborted transactions without any record left in the log."""
        for entry in sorted(aborted, key=lambda entry: entry.first_offset):
            self._aborted.setdefault(entry.producer_id, deque()).append(entry)

    def rolls_back(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        entry = self._entry_at(header)
        if entry is None or entry.first_offset > header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._with_records.add(entry)
        return True

    def needs(self, header: BatchHeader, *, commits: bool) -> bool:
        needed = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        entry = None if commits else self._entry_at(header)
        if entry is None or entry.last_offset != header.base_offset:
            return needed
        if entry in self._with_records:
            return True
        self.forgotten.append(entry)
        return False

    def _entry_at(self, header: BatchHeader) -> AbortedTransaction | None:
        """The producer's first transaction that ends at the batch or after it."""
        entries = self._aborted.get(header.producer_id)
        if not entries:
            return None
        while entries and entries[0].last_offset < header.base_offset:
            entries.popleft()
        return entries[0] if entries else None


DEDUPE_BUFFER_BYTES: Final = 128 << 20
"""Default of `log.cleaner.dedupe.buffer.size`."""
_MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
_INDEX_INTERVAL_BYTES: Final = 4096
"""Only for an index that must be rebuilt in memory because its file is lost."""


class CompactionStoppedError(LogError):
    """Compaction was stopped before it was done. Nothing has changed."""


class DedupeBufferTooSmallError(LogError):
    """The keys of one batch do not fit into `log.cleaner.dedupe.buffer.size`, so compaction makes no progress."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to clean and how; see `penstock.log.compacting.compaction.plan`."""

    partition: str
    folder: Path
    sources: tuple[SourceSegment, ...]
    """Consecutive segments, from the first one of the log on."""
    first_dirty_offset: int
    """Everything before it is clean: there is one record of each key."""
    aborted: tuple[AbortedTransaction, ...]
    last_batches: dict[int, tuple[int, int | None]]
    """For each known producer: its epoch, and the offset of its last record if there is one."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    dedupe_buffer_bytes: int

    @property
    def end_offset(self) -> int:
        return self.sources[-1].next_offset


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of `run`, to be passed to `penstock.log.compacting.compaction.install`."""

    plan: Plan
    clean_offset: int
    """Everything before it is clean now. Before the plan's end if the offset map was too small for all keys."""
    replaced: tuple[int, ...]
    """Base offsets of the segments that the cleaned files replace."""
    files: tuple[tuple[int, int], ...]
    """Base offset and size of each cleaned file."""
    forgotten: tuple[AbortedTransaction, ...]
    """Aborted transactions of which no record is left."""
    damaged: tuple[CorruptSegmentError, ...]
    """What was found wrong in each segment that was left unchanged."""


def run(plan: Plan, *, disk: Disk | None = None, stopped: Callable[[], bool] = lambda: False) -> Cleaned:
    """Clean the segments of a plan into new files.

    Raises StorageError if the disk refuses, and CompactionStoppedError soon after `stopped` returns True; then no file
    is left behind.
    """
    resources = Resources(disk, open_files=4, indexes=2, read_only=True)
    work = _Cleaning(plan, resources, stopped)
    try:
        return work.run()
    except BaseException as error:
        work.discard()
        if isinstance(error, OSError):
            raise StorageError(f"{plan.partition} could not be compacted: {error.strerror}") from error
        raise
    finally:
        resources.files.close()


class _Cleaning:
    def __init__(self, plan: Plan, resources: Resources, stopped: Callable[[], bool]) -> None:
        self._plan = plan
        self._resources = resources
        self._stopped = stopped
        dirty = plan.end_offset - plan.first_dirty_offset
        self._map = OffsetMap(plan.dedupe_buffer_bytes, dirty)
        self._transactions = DecidedTransactions(plan.aborted)
        self._damage: dict[int, CorruptSegmentError] = {}
        self._outputs: list[_Output] = []

    def run(self) -> Cleaned:
        segments = [self._open(source) for source in self._plan.sources]
        self._fill_map(segments)
        last = self._map.last_offset
        if last < self._plan.first_dirty_offset:
            raise DedupeBufferTooSmallError(
                f"{self._plan.partition}: the keys of a single batch do not fit into "
                f"log.cleaner.dedupe.buffer.size={self._plan.dedupe_buffer_bytes}; raise it"
            )
        for segment in segments:
            if segment.base_offset <= last:
                self._clean(segment)
        self._finish_output()
        outputs = [output for output in self._outputs if output.changed]
        return Cleaned(
            plan=self._plan,
            clean_offset=last + 1,
            replaced=tuple(source for output in outputs for source in output.sources),
            files=tuple((output.file.base_offset, output.file.size) for output in outputs),
            forgotten=() if self._damage else tuple(self._transactions.forgotten),
            damaged=tuple(self._damage.values()),
        )

    def discard(self) -> None:
        for output in self._outputs:
            output.file.discard()

    def _open(self, source: SourceSegment) -> Segment:
        segment = Segment(self._plan.folder, source.base_offset, self._resources, _INDEX_INTERVAL_BYTES)
        clean = source.base_offset < self._plan.first_dirty_offset
        segment.load_sealed(source.next_offset, clean=clean)
        if segment.size != source.size_bytes:
            raise StorageError(f"{segment.path} has {segment.size} bytes instead of {source.size_bytes}")
        return segment

    def _batches(self, segment: Segment, position: int = 0) -> Iterator[WholeBatch | BadBytes]:
        for step in segment.batches(position):
            if self._stopped():
                raise CompactionStoppedError(f"{self._plan.partition}: compaction was stopped before it was done")
            yield step

    # First pass: the last offset of each key in the dirty part.

    def _fill_map(self, segments: list[Segment]) -> None:
        first_dirty = self._plan.first_dirty_offset
        transactions = DecidedTransactions(self._plan.aborted)
        for segment in segments:
            if segment.next_offset <= first_dirty:
                continue
            for step in self._batches(segment, segment.index.position_for_offset(first_dirty)):
                if isinstance(step, BadBytes):
                    self._note_damage(segment, step.position, self._map.last_offset + 1, step.reason)
                elif not step.header.is_control and not transactions.rolls_back(step.header):
                    if not self._put_keys(segment, step):
                        return
                    self._map.last_offset = step.header.last_offset
            self._map.last_offset = segment.next_offset - 1

    def _put_keys(self, segment: Segment, found: WholeBatch) -> bool:
        """Put the keys of a segment into the map. False if the map is full; entries beyond its last offset are
        correct all the same."""
        _, outlines = self._outlines(segment, found) or (b"", [])
        first_dirty = self._plan.first_dirty_offset
        return all(
            self._map.put(outline.key, outline.offset)
            for outline in outlines
            if outline.key is not None and outline.offset >= first_dirty
        )

    def _outlines(self, segment: Segment, found: WholeBatch) -> tuple[bytes, list[Outline]] | None:
        """The batch's records; None if they cannot be read, although the batch is as it was sent."""
        try:
            body = body_of(found.header, found.batch)
            return body, outlines_of(found.header, body)
        except CorruptBatchError as error:
            self._note_damage(segment, found.position, found.header.base_offset, str(error))
            return None

    def _note_damage(self, segment: Segment, position: int, offset: int, reason: str) -> None:
        damage = CorruptSegmentError(str(segment.path), position, max(offset, segment.base_offset), reason)
        self._damage.setdefault(segment.base_offset, damage)

    # Second pass: what is left of each batch.

    def _clean(self, segment: Segment) -> None:
        output = self._output_for(segment)
        mark, altered = output.file.mark(), output.altered
        for step in self._batches(segment):
            if isinstance(step, BadBytes):
                self._note_damage(segment, step.position, segment.base_offset, step.reason)
            else:
                self._clean_batch(segment, step, output)
        if segment.base_offset in self._damage:
            output.file.go_back(mark)
            output.altered = altered
            self._finish_output()
        else:
            output.sources.append(segment.base_offset)
            output.next_offset = segment.next_offset

    def _output_for(self, segment: Segment) -> _Output:
        output = self._outputs[-1] if self._outputs else None
        if (
            output is None
            or output.finished
            or output.file.size + segment.size > self._plan.segment_bytes
            or segment.next_offset - output.file.base_offset > _MAX_RELATIVE_OFFSET
        ):
            self._finish_output()
            file = CleanedSegment(self._plan.folder, segment.base_offset, self._resources.disk)
            output = _Output(file, segment.base_offset)
            self._outputs.append(output)
        return output

    def _finish_output(self) -> None:
        if self._outputs and not self._outputs[-1].finished:
            output = self._outputs[-1]
            output.finished = True
            if output.changed:
                output.file.finish(output.next_offset)
            else:
                output.file.discard()

    def _clean_batch(self, segment: Segment, found: WholeBatch, output: _Output) -> None:
        header = found.header
        cleaned = self._clean_marker(found) if header.is_control else self._clean_data(segment, found)
        output.altered = output.altered or cleaned is None or cleaned[0] is not header
        if cleaned is not None:
            output.file.append(cleaned[1], header.base_offset, cleaned[0].max_timestamp)

    def _clean_marker(self, found: WholeBatch) -> tuple[BatchHeader, bytearray | memoryview] | None:
        header, batch = found.header, found.batch
        commits = marker_commits(batch)
        if commits is None:
            return (header, batch) if header.record_count or self._is_last_of_producer(header) else None
        if self._transactions.needs(header, commits=commits) or self._damage:
            return header, batch
        if not header.attributes & DELETE_HORIZON:
            body = body_of(header, batch)
            return with_records(header, body, outlines_of(header, body), self._delete_horizon_ms)
        if header.base_timestamp > self._plan.now_ms or self._is_last_of_producer(header):
            return header, batch
        return None

    def _clean_data(self, segment: Segment, found: WholeBatch) -> tuple[BatchHeader, bytearray | memoryview] | None:
        header, batch = found.header, found.batch
        outlines: list[Outline] = []
        kept: list[Outline] = []
        body = b""
        if not self._transactions.rolls_back(header):
            readable = self._outlines(segment, found)
            if readable is None:
                return header, batch
            body, outlines = readable
            kept = [outline for outline in outlines if self._stays(header, outline)]
        if not kept:
            if not self._is_last_of_producer(header):
                return None
            return (header, batch) if not header.record_count else without_records(header)
        fresh_tombstones = (
            not header.attributes & DELETE_HORIZON
            and header.last_offset <= self._map.last_offset
            and not self._damage
            and not all(outline.has_value for outline in kept)
        )
        if len(kept) == len(outlines) and not fresh_tombstones:
            return header, batch
        return with_records(header, body, kept, self._delete_horizon_ms if fresh_tombstones else None)

    def _stays(self, header: BatchHeader, outline: Outline) -> bool:
        if outline.offset > self._map.last_offset:
            return True
        if outline.key is None or outline.offset < self._map.get(outline.key):
            return False
        if outline.has_value or not header.attributes & DELETE_HORIZON:
            return True
        # Without its tombstone, an older value in a segment that could not be cleaned would reappear.
        return header.base_timestamp > self._plan.now_ms or bool(self._damage)

    @property
    def _delete_horizon_ms(self) -> int:
        return self._plan.now_ms + self._plan.delete_retention_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether a replay of the log needs this batch to know its producer."""
        epoch, last_offset = self._plan.last_batches.get(header.producer_id, (None, None))
        if last_offset is not None:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


@dataclass(slots=True)
class _Output:
    file: CleanedSegment
    next_offset: int
    sources: list[int] = field(default_factory=list)
    altered: bool = False
    finished: bool = False

    @property
    def changed(self) -> bool:
        """Whether it differs from its source: a segment of which everything stays can stay itself."""
        return len(self.sources) > 1 or (self.altered and bool(self.sources))
