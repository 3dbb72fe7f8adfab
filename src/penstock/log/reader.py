"""Reading a partition without a broker: by offset, by time, following the end, or into Arrow.

Readers only open the files of a data folder. They work while a broker writes, compacts and deletes, and beside any
number of other readers. They see what is written, which may be a moment before the broker acknowledges it.

    with LogReader("data", "orders") as orders:
        for record in orders.partition(0).read(offset=100): ...
        for record in orders.partition(0).follow(): ...
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import msgspec

from penstock.errors import (
    CorruptBatchError,
    CorruptSegmentError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicError,
)
from penstock.log.batches.batch import BatchHeader, StoredRecord, read_header, records_of
from penstock.log.batches.scan import WholeBatch, walk
from penstock.log.live_view import LiveView
from penstock.log.partition import PartitionLog
from penstock.log.segment import Segment
from penstock.log.statefile import read_state
from penstock.log.store import TOPICS_FOLDER, TopicState, check_topic_name

if TYPE_CHECKING:
    import pyarrow as pa


def offset_after(log: PartitionLog, start: int, size_bytes: int, stop: int) -> tuple[int, int]:
    """The offset after about `size_bytes` from `start` on, at most `stop`, and how many bytes that is.

    It is after `start` if `stop` is, even if a single record is larger than `size_bytes`.
    """
    used_bytes = 0
    offset = start
    for segment in log.segments:
        if segment.next_offset <= offset:
            continue
        if offset >= stop:
            break
        offset = max(offset, segment.base_offset)
        here = position_about(segment, offset)
        behind = position_about(segment, min(stop, segment.next_offset))
        left_bytes = size_bytes - used_bytes
        if behind - here > left_bytes:
            reached = min(stop, max(start + 1, offset_about(segment, here + left_bytes)))
            return reached, used_bytes + max(left_bytes, position_about(segment, reached) - here)
        used_bytes += behind - here
        offset = segment.next_offset
    return stop, used_bytes


def position_about(segment: Segment, offset: int) -> int:
    index = segment.index
    return _between(index.offsets, index.positions, segment.next_offset, segment.size, segment.base_offset, 0, offset)


def offset_about(segment: Segment, position: int) -> int:
    index = segment.index
    return _between(index.positions, index.offsets, segment.size, segment.next_offset, 0, segment.base_offset, position)


def _between(
    given: Sequence[int],
    wanted: Sequence[int],
    last_given: int,
    last_wanted: int,
    first: int,
    first_wanted: int,
    at: int,
) -> int:
    """Interpolate linearly: the value of `wanted` where `given` is `at`."""
    entry = bisect_right(given, at) - 1
    low, low_wanted = (given[entry], wanted[entry]) if entry >= 0 else (first, first_wanted)
    following = entry + 1
    high, high_wanted = (given[following], wanted[following]) if following < len(given) else (last_given, last_wanted)
    if high <= low or at >= high:
        return high_wanted
    return low_wanted + (high_wanted - low_wanted) * (at - low) // (high - low)


logger = logging.getLogger(__name__)

Isolation = Literal["read_committed", "read_uncommitted"]
OnDamage = Literal["raise", "skip"]

_PIECE_BYTES: Final = 1 << 20
_ARROW_PIECE_BYTES: Final = 8 << 20
"""Larger pieces of memory are newly allocated by the system each time, which takes as long as decoding them."""
_LOOKS: Final = 3
"""How often to look at damage before reporting it: the file may just have been replaced."""


class ClosedSegment(NamedTuple):
    """A segment file that gets no more records. Compaction replaces it by another file."""

    path: Path
    inode: int
    size_bytes: int
    changed_ns: int
    base_offset: int
    next_offset: int


class PartitionReader:
    """Reads the folder of one partition.

    `isolation="read_committed"` leaves out records of aborted transactions and stops at the first open one.
    `on_damage="skip"` skips damaged batches and logs a warning; "raise" raises CorruptSegmentError, and reading can
    continue after it. Transaction markers are never returned.

    Not thread-safe.
    """

    def __init__(
        self, folder: Path | str, *, isolation: Isolation = "read_committed", on_damage: OnDamage = "raise"
    ) -> None:
        if isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"isolation={isolation!r}; use read_committed or read_uncommitted")
        if on_damage not in ("raise", "skip"):
            raise ValueError(f"on_damage={on_damage!r}; use raise or skip")
        self._committed = isolation == "read_committed"
        self._skips = on_damage == "skip"
        self._view = LiveView(Path(folder))

    @property
    def partition(self) -> int:
        return self._view.partition

    @property
    def start_offset(self) -> int:
        """The first offset that can be read, as of the last look at the files."""
        return self._view.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last record that can be read, as of the last look at the files."""
        log = self._view.log
        return log.last_stable_offset if self._committed else log.end_offset

    def refresh(self) -> None:
        """Look at the files again. Reading does this when it starts."""
        self._view.refresh()

    def read(self, offset: int | None = None, stop: int | None = None) -> Iterator[StoredRecord]:
        """The records from `offset` (default: the first) to `stop`, or to the current end.

        Raises OffsetOutOfRangeError, now or later, if the offset is deleted or not written yet.
        """
        self.refresh()
        start = self.start_offset if offset is None else offset
        self._check(start)
        end = self.end_offset if stop is None else min(stop, self.end_offset)
        return self._records(start, end)

    def from_time(self, timestamp_ms: int, stop: int | None = None) -> Iterator[StoredRecord]:
        """The records from the first one at or after a time, to `stop` or to the current end."""
        self.refresh()
        found = self._offset_for_time(timestamp_ms)
        return iter(()) if found is None or found >= self.end_offset else self.read(found, stop)

    def tail(self, count: int) -> list[StoredRecord]:
        """The last `count` records."""
        self.refresh()
        distance = count
        while True:  # ends at the start of the log at the latest
            start = max(self.start_offset, self.end_offset - distance)
            found = list(self.read(start)) if count > 0 else []
            if len(found) >= count or start == self.start_offset:
                return found[-count:]
            distance *= 2

    def follow(
        self, offset: int | None = None, *, poll_s: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[StoredRecord]:
        """The records from `offset` (default: the current end) and new ones as they arrive, until `stop` is set.

        Raises OffsetOutOfRangeError if records are deleted before they were read, UnknownTopicError if the topic is
        deleted.
        """
        self.refresh()
        start = self.end_offset if offset is None else offset
        self._check(start)
        return self._follow(start, poll_s, stop or threading.Event())

    def to_arrow(self, start: int | None = None, stop: int | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The records from `start` to `stop`, or to the current end, as Arrow RecordBatches; needs `penstock[arrow]`.

        `options` are those of `penstock.log.arrow.decode_in_chunks`: engine, unit, views, chunk_bytes.
        """
        self.refresh()
        first = self.start_offset if start is None else start
        self._check(first)
        end = self.end_offset if stop is None else min(stop, self.end_offset)
        return self._to_arrow(first, end, options)

    def closed_segments(self) -> list[ClosedSegment]:
        """The closed segments of which all records can be read, as of now."""
        self.refresh()
        found = []
        for segment in self._view.log.segments[:-1]:
            if self.start_offset < segment.next_offset <= self.end_offset:
                with contextlib.suppress(FileNotFoundError):  # it has just expired
                    status = segment.path.stat()
                    identity = (status.st_ino, status.st_size, status.st_mtime_ns)
                    found.append(ClosedSegment(segment.path, *identity, segment.base_offset, segment.next_offset))
        return found

    def offset_after(self, start: int, size_bytes: int, stop: int) -> tuple[int, int]:
        """The offset after about `size_bytes` of stored data from `start` on, at most `stop`, and how many bytes that
        is.

        WholeBatch by the indexes, without reading. It is after `start` if `stop` is, however large a record is.
        """
        self.refresh()
        return offset_after(self._view.log, start, size_bytes, stop)

    def close(self) -> None:
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    def _check(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(self._view.log.name, offset, self.start_offset, self.end_offset)

    def _offset_for_time(self, timestamp_ms: int) -> int | None:
        for look in range(_LOOKS):
            try:
                found = self._view.log.offset_for_time(timestamp_ms)
                return None if found is None else found[0]
            except (CorruptSegmentError, StorageError, FileNotFoundError):
                if look == _LOOKS - 1:
                    raise
                self._view.reopen()
        return None

    def _follow(self, offset: int, poll_s: float, stop: threading.Event) -> Iterator[StoredRecord]:
        while not stop.is_set():
            end = self.end_offset
            for record in self._records(offset, end):
                yield record
                if stop.is_set():
                    return
            offset = max(offset, end)
            if stop.wait(poll_s):
                return
            self.refresh()
            self._check(offset)

    def _records(self, offset: int, stop: int) -> Iterator[StoredRecord]:
        for piece in self._pieces(offset, stop, _PIECE_BYTES):
            for position, header in piece.batches():
                if header.is_control or (header.is_transactional and self._is_aborted(header)):
                    continue
                try:
                    records = list(records_of(piece.data[position : position + header.size_bytes]))
                except CorruptBatchError as error:
                    self._damaged(piece.damage(position, header.base_offset, str(error)))
                    continue
                for record in records:
                    if offset <= record.offset < stop:
                        yield record

    def _to_arrow(self, offset: int, stop: int, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        from penstock.log.arrow import BufferOrigin, decode_in_chunks

        for piece in self._pieces(offset, stop, _ARROW_PIECE_BYTES):
            origin = BufferOrigin(str(piece.path), piece.position, whole=True)
            aborted = self._view.log.aborted.between(offset, stop) if self._committed else ()
            rest = piece.data
            while rest:
                chunks = decode_in_chunks(
                    rest,
                    partition=self.partition,
                    start=offset,
                    stop=stop,
                    aborted=aborted,
                    verify=False,
                    origin=origin,
                    **options,
                )
                try:
                    yield from chunks
                    break
                except CorruptSegmentError as error:
                    self._damaged(error)
                    behind = error.position - origin.position
                    behind += read_header(rest, behind).size_bytes
                    rest, origin = rest[behind:], replace(origin, position=origin.position + behind)

    def _is_aborted(self, header: BatchHeader) -> bool:
        return self._committed and any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._view.log.aborted.between(header.base_offset, header.next_offset)
        )

    def _pieces(self, offset: int, stop: int, max_bytes: int) -> Iterator[_Piece]:
        """Consecutive whole, valid batches that hold the offsets in `[offset, stop)`."""
        looks = 0
        while offset < stop:
            log = self._view.log
            if offset < self.start_offset:
                raise OffsetOutOfRangeError(log.name, offset, self.start_offset, self.end_offset)
            try:
                found = log.read(offset, max_bytes, self.end_offset)
                if found is None:
                    return
                data = log.resources.disk.read(found.file.fd, found.length, found.position)
            except CorruptSegmentError as error:
                looks += 1
                if looks < _LOOKS:
                    self._view.look_again(log.segment_for(offset))
                    continue
                self._damaged(error)
                offset, looks = self._behind_damage(offset), 0
            except (StorageError, FileNotFoundError):
                looks += 1
                if looks == _LOOKS:
                    raise
                self._view.look_again(log.segment_for(offset))
            else:
                piece, offset = _whole_batches(log.segment_for(offset).path, found.position, memoryview(data))
                looks = 0
                yield piece

    def _damaged(self, error: CorruptSegmentError) -> None:
        if not self._skips:
            raise error
        logger.warning("skipped: %s", error, extra={"segment": error.file, "position": error.position})

    def _behind_damage(self, offset: int) -> int:
        """The first offset after the damage that holds `offset`."""
        log = self._view.log
        segment = log.segment_for(offset)
        for step in segment.batches(segment.index.position_for_offset(offset)):
            if isinstance(step, WholeBatch) and step.header.base_offset > offset:
                return step.header.base_offset
        following = (each.base_offset for each in log.segments if each.base_offset > offset)
        return next(following, log.end_offset)


class _Piece(NamedTuple):
    path: Path
    position: int
    data: memoryview

    def batches(self) -> Iterator[tuple[int, BatchHeader]]:
        position = 0
        while position < len(self.data):
            header = read_header(self.data, position)
            yield position, header
            position += header.size_bytes

    def damage(self, position: int, offset: int, reason: str) -> CorruptSegmentError:
        return CorruptSegmentError(str(self.path), self.position + position, offset, reason)


def _whole_batches(path: Path, position: int, data: memoryview) -> tuple[_Piece, int]:
    """The whole batches in the bytes read at a position, and the offset after them."""
    end = next_offset = 0
    for start, _, last, _, size in walk(lambda at, length: data[at : at + length], 0, len(data)):
        end, next_offset = start + size, last + 1
    return _Piece(path, position, data[:end]), next_offset


class LogReader:
    """Reads the partitions of one topic in a data folder. See `PartitionReader` for the options."""

    def __init__(
        self, folder: Path | str, topic: str, *, isolation: Isolation = "read_committed", on_damage: OnDamage = "raise"
    ) -> None:
        check_topic_name(topic)
        self._folder = Path(folder)
        self._topic = topic
        self._isolation = isolation
        self._on_damage = on_damage
        self._open: dict[int, PartitionReader] = {}
        self.partition_count()

    def partition_count(self) -> int:
        content = read_state(self._folder / TOPICS_FOLDER / self._topic)
        if content is None:
            raise UnknownTopicError(f"there is no topic {self._topic!r} in {self._folder}")
        return msgspec.json.decode(content, type=TopicState).partition_count

    def partition(self, number: int) -> PartitionReader:
        count = self.partition_count()
        if not 0 <= number < count:
            raise UnknownTopicError(f"topic {self._topic!r} has partitions 0 to {count - 1}, not {number}")
        if number not in self._open:
            self._open[number] = PartitionReader(
                self._folder / f"{self._topic}-{number}", isolation=self._isolation, on_damage=self._on_damage
            )
        return self._open[number]

    def partitions(self) -> list[PartitionReader]:
        return [self.partition(number) for number in range(self.partition_count())]

    def to_arrow(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """All records of all partitions, one partition after the other."""
        for reader in self.partitions():
            yield from reader.to_arrow(**options)

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
