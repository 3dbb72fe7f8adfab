"""One segment: a file of record batches, and the index beside it."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import CorruptSegmentError, StorageError
from penstock.log.batches.batch import HEADER_BYTES, NO_TIMESTAMP
from penstock.log.batches.scan import BadBytes, WholeBatch, scan, walk
from penstock.log.disk import Disk, FilePool, OpenFile
from penstock.log.index import Seal, SparseIndex, load_index, read_seal, seal_block

logger = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".penstock-index"
"""Not Kafka's `.index`: the format differs."""
CLEANED_SUFFIX: Final = ".cleaned"
_SEAL_TAIL_BYTES: Final = 64


class Owner(Protocol):
    def check(self) -> None:
        """Raise StorageError if the data folder was removed or replaced."""


class Resources:
    """What all partitions of one data folder share: the disk, open files, and indexes in memory."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        open_files: int = 512,
        indexes: int = 256,
        index_bytes: int = 64 << 20,
        read_only: bool = False,
    ) -> None:
        self.disk = disk or Disk()
        self.read_only = read_only
        self.owner: Owner | None = None
        """Checks that the data folder is still ours; None if nothing can take it away."""
        self.files = FilePool(self.disk, open_files)
        self._most_indexes = indexes
        self._most_index_bytes = index_bytes
        self._index_bytes = 0
        self._indexed: OrderedDict[Segment, int] = OrderedDict()

    def check_owner(self) -> None:
        """Raise StorageError if the folder is not ours. Called before a file is created or replaced by its path."""
        if self.owner is not None:
            self.owner.check()

    def index_used(self, segment: Segment) -> None:
        """Keep the most recently used indexes in memory, and drop the others. The one in use always stays."""
        size = segment.index_bytes
        self._index_bytes += size - self._indexed.get(segment, 0)
        self._indexed[segment] = size
        self._indexed.move_to_end(segment)
        while len(self._indexed) > 1 and (
            len(self._indexed) > self._most_indexes or self._index_bytes > self._most_index_bytes
        ):
            oldest, size = self._indexed.popitem(last=False)
            self._index_bytes -= size
            oldest.unload_index()

    def forget(self, segment: Segment) -> None:
        self._index_bytes -= self._indexed.pop(segment, 0)
        self.files.drop(segment.path)


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    """Batches from `base_offset` on. Only the last segment of a partition is written to; the others are sealed."""

    __slots__ = (
        "_index",
        "_mtime_ns",
        "_reported",
        "_seal",
        "_verified",
        "base_offset",
        "first_timestamp",
        "index_interval_bytes",
        "max_timestamp",
        "next_offset",
        "path",
        "resources",
        "sealed",
        "size",
        "staged",
        "staged_bytes",
    )

    def __init__(self, folder: Path, base_offset: int, resources: Resources, index_interval_bytes: int) -> None:
        self.path = folder / (segment_name(base_offset) + LOG_SUFFIX)
        self.base_offset = base_offset
        self.resources = resources
        self.index_interval_bytes = index_interval_bytes
        self.size = 0
        """Bytes written to the file."""
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self.sealed = False
        self.staged: list[memoryview] = []
        self.staged_bytes = 0
        self._index: SparseIndex | None = None
        self._seal: Seal | None = None
        self._verified: list[tuple[int, int]] = []
        self._mtime_ns = 0
        self._reported: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def index_bytes(self) -> int:
        return 0 if self._index is None else self._index.size_bytes

    @property
    def newest_ms(self) -> int:
        """The timestamp of its newest record; the file's modification time if no record has one."""
        return self.max_timestamp if self.max_timestamp >= 0 else int(self.path.stat().st_mtime * 1000)

    # Writing, for the last segment of a partition only.

    def stage(self, batch: memoryview, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Stage a batch that has its final bytes; the next `write_staged` writes it."""
        index = self._index
        if index is None:
            index = self._index = SparseIndex(self.index_interval_bytes)
        index.note(base_offset, self.size + self.staged_bytes, self.max_timestamp)
        self.staged.append(batch)
        self.staged_bytes += len(batch)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        if self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = max_timestamp
        self.next_offset = last_offset + 1

    def write_staged(self) -> None:
        """Write what is staged. On an error, truncate the file to its former size and raise."""
        file = self.resources.files.get(self.path, write=True)
        try:
            self.resources.disk.write_all(file.fd, self.staged, self.size)
        except OSError as error:
            self.drop_staged()
            self.resources.disk.truncate(file.fd, self.size)
            raise StorageError(f"{self.path} could not be written: {error.strerror}") from error
        start, self.size = self.size, self.size + self.staged_bytes
        self.mark_verified(start, self.size)
        self.staged = []
        self.staged_bytes = 0

    def drop_staged(self) -> None:
        """Drop what is staged but not written. The caller restores timestamps and next offset."""
        self.staged = []
        self.staged_bytes = 0
        if self._index is not None:
            self._index.cut(self.size)

    def save_index(self) -> None:
        """Append the new index entries to the index file. If a crash loses them, they are rebuilt."""
        if self._index is not None and (block := self._index.take_unsaved()):
            self._append_to_index(block)

    def _append_to_index(self, block: bytes) -> None:
        if self.resources.read_only:
            return
        try:
            with self.index_path.open("ab") as file:
                file.write(block)
        except OSError as error:
            logger.warning(
                "%s could not be written (%s); it will be rebuilt",
                self.index_path,
                error.strerror,
                extra={"errno": error.errno},
            )

    def seal(self, *, compacted: bool = False) -> None:
        """Seal the segment: no batch will follow. Writes the summary of the index; the caller syncs the files."""
        self.save_index()
        self._seal = Seal(self.size, self.next_offset, self.max_timestamp, self.first_timestamp, int(compacted))
        self._append_to_index(seal_block(self._seal))
        self.sealed = True
        self.resources.index_used(self)
        self._mtime_ns = os.stat(self.path).st_mtime_ns

    # Opening existing segments.

    def load_sealed(self, following: int, *, clean: bool = False) -> None:
        """Prepare a sealed segment for reading; `following` is the first offset of the next segment.

        The seal describes the segment. Without a matching seal the whole file is read; then `clean` matters: it means
        that compaction has processed the file, so that missing offsets need not be damage.
        """
        self.sealed = True
        self.size = self.path.stat().st_size
        self.next_offset = following
        try:
            with self.index_path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _SEAL_TAIL_BYTES))
                seal = read_seal(file.read())
        except FileNotFoundError:
            seal = None
        if seal is None or seal.size_bytes != self.size:
            self.rebuild_index(compacted=clean or self._looks_compacted())
        else:
            self._seal = seal
            self.next_offset = seal.next_offset
            self.max_timestamp = seal.max_timestamp
            self.first_timestamp = seal.first_timestamp

    @property
    def compacted(self) -> bool:
        return self._seal is not None and bool(self._seal.compacted)

    @property
    def index(self) -> SparseIndex:
        if self._index is None:
            self._load_index()
        if self.sealed:
            self.resources.index_used(self)
        assert self._index is not None
        return self._index

    def _load_index(self) -> None:
        try:
            index, seal, intact = load_index(self.index_path.read_bytes(), self.index_interval_bytes)
        except FileNotFoundError:
            index, seal, intact = SparseIndex(self.index_interval_bytes), None, True
        if self.sealed and (seal is None or not intact):
            self.rebuild_index(compacted=self.compacted)
        else:
            self._index = index

    def unload_index(self) -> None:
        if self.sealed:
            self._index = None

    def adopt_index(self, index: SparseIndex) -> None:
        """Use the index that recovery built, for a segment that is still written to."""
        self._index = index

    def rebuild_index(self, *, compacted: bool) -> None:
        index = SparseIndex(0 if compacted else self.index_interval_bytes)
        reached = self.base_offset
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        for step in scan(self.read_at, 0, self.size, self.base_offset, dense=not compacted):
            if isinstance(step, WholeBatch):
                index.note(step.header.base_offset, step.position, self.max_timestamp)
                if self.first_timestamp == NO_TIMESTAMP:
                    self.first_timestamp = step.header.max_timestamp
                self.max_timestamp = max(self.max_timestamp, step.header.max_timestamp)
                reached = step.header.next_offset
        if not compacted and self._seal is None:
            self.next_offset = reached
        logger.warning("rebuilt the index of %s", self.path, extra={"segment": str(self.path)})
        self._index = index
        if not self.resources.read_only:
            self.index_path.unlink(missing_ok=True)
        self.seal(compacted=compacted)

    def _looks_compacted(self) -> bool:
        """Whether offsets are missing and none is out of order, as in a compacted segment. A damaged offset in a
        segment that was never compacted is out of order with the next one, or with the end."""
        expected = self.base_offset
        left_out = False
        for _, base, last, _, _ in walk(self.read_at, 0, self.size):
            if base < expected or last >= self.next_offset:
                return False
            left_out = left_out or base > expected
            expected = last + 1
        return left_out

    # Reading.

    def file(self) -> OpenFile:
        return self.resources.files.get(self.path, write=not (self.sealed or self.resources.read_only))

    def read_at(self, position: int, length: int) -> bytes:
        try:
            return self.resources.disk.read(self.file().fd, length, position)
        except OSError as error:
            raise StorageError(f"{self.path} could not be read at byte {position}: {error.strerror}") from error

    def batches(self, position: int = 0) -> Iterator[WholeBatch | BadBytes]:
        """Every batch from `position`, which the index must confirm; each is verified, or a `BadBytes`."""
        if self.compacted:
            yield from self._batches_with_gaps(position)
        else:
            yield from scan(self.read_at, position, self.size, self._offset_at(position))

    def _batches_with_gaps(self, position: int) -> Iterator[WholeBatch | BadBytes]:
        """In a compacted segment only the index can confirm a batch's offset."""
        while position < self.size:
            for step in scan(self.read_at, position, self.size, self._offset_at(position), dense=False):
                position = step.end
                if isinstance(step, WholeBatch) and not self.index.has(step.header.base_offset, step.position):
                    yield BadBytes(step.position, step.end, "its offset is not the one in the index")
                    break
                yield step

    def _offset_at(self, position: int) -> int:
        return max(self.base_offset, self.index.offset_at(position))

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the first one after it; the size if there is none.

        That batch is valid, and so is everything before it: no record is skipped. Raises CorruptSegmentError if the
        offset is lost in damage.
        """
        offset = max(offset, self.base_offset)
        start = reached = self.index.position_for_offset(offset)
        for position, _, last, _, size in walk(self.read_at, start, self.size):
            reached = position + size
            if last >= offset:
                return position if self.verify(start, reached) == reached else self._search(start, offset)
        complete = reached == self.size and (self.compacted or offset >= self.next_offset)
        if complete and (reached == start or self.verify(start, reached) == reached):
            return self.size
        return self._search(start, offset)

    def _search(self, start: int, offset: int) -> int:
        bad: BadBytes | None = None
        for step in self.batches(start):
            if isinstance(step, BadBytes):
                bad = step
            elif step.header.last_offset < offset:
                bad = None
            elif bad is None or step.header.base_offset <= offset:
                return step.position
            else:
                break
        if bad is None:
            if self.compacted or offset >= self.next_offset:
                return self.size
            bad = BadBytes(self.size, self.size, "the file ends before it")
        raise self._damaged(bad, offset)

    def _damaged(self, bad: BadBytes, offset: int) -> CorruptSegmentError:
        """The error for a damaged position. It is logged once, however often it is read. A reader that does not own the
        files does not log it: they may be changing, and it looks again first."""
        error = CorruptSegmentError(str(self.path), bad.position, offset, bad.reason)
        if bad.position not in self._reported and not self.resources.read_only:
            self._reported += (bad.position,)
            logger.error("%s", error, extra={"segment": str(self.path), "position": bad.position})
        return error

    def end_before(self, limit: int, position: int) -> int:
        """Where the batches from `position` on reach `limit`, by their headers alone: `verify` stops at damage."""
        if limit >= self.next_offset:
            return self.size
        reached = max(position, self.index.position_for_offset(limit))
        for here, _, last, _, size in walk(self.read_at, reached, self.size):
            if last >= limit:
                return here
            reached = here + size
        return reached if reached + HEADER_BYTES <= self.size else self.size

    def verify(self, position: int, end: int) -> int | BadBytes:
        """Verify what is about to be served.

        Returns up to where it is valid, at most `end`, or what is wrong with the batch at `position`. Each byte is
        checked once, as long as only this process writes to the file: what it wrote itself was checked before.
        """
        if self.sealed:
            mtime_ns = os.fstat(self.file().fd).st_mtime_ns
            if mtime_ns != self._mtime_ns:
                self._mtime_ns = mtime_ns
                self._verified.clear()
        start = position
        for low, high in self._verified:
            if low <= position < high:
                if end <= high:
                    return end
                start = high
        return self._verify_from(self.index.position_before(start), end, position)

    def _verify_from(self, start: int, end: int, position: int) -> int | BadBytes:
        """Check batch by batch from a position that the index confirms, until `end` or the first damage."""
        reached = start
        fault: BadBytes | None = None
        for step in self.batches(start):
            if isinstance(step, WholeBatch):
                reached = step.position + len(step.batch)
                if reached >= end:
                    break
            elif step.end > position:
                fault = step
                break
            else:
                self.mark_verified(start, reached)
                start = reached = step.end
        self.mark_verified(start, reached)
        if fault is not None and fault.position <= position:
            self._damaged(fault, self._offset_at(fault.position))
            return fault
        return min(end, reached)

    def mark_verified(self, start: int, end: int) -> None:
        if start >= end:
            return
        merged: list[tuple[int, int]] = []
        for low, high in self._verified:
            if high < start or low > end:
                merged.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        merged.append((start, end))
        self._verified = merged
