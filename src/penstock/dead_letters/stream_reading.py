"""Read the topic of dead letters: new records, and single letters again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock import abc
from penstock.dead_letters.letter_index import Event, LetterIndex
from penstock.dead_letters.stream_encoding import DecodedRecord, NotALetter, join, read_record
from penstock.dead_letters.stream_holds import Holds, sign_of
from penstock.errors import OffsetOutOfRangeError, StoreUnavailableError, UnknownTopicError
from penstock.model import Batch, DeadLetter, Pointer, Record

logger = logging.getLogger(__name__)

_READ_RECORDS: Final = 5_000
_NEAR_RECORDS: Final = 500
"""Letters that are at most this far apart are read again with one read."""
_WAIT_S: Final = 1.0
_EMPTY_READS: Final = 30
"""After this many empty reads where records must exist, the stream counts as unavailable."""
_BEGINNINGS: Final = 3
"""How often to start again because records expire while they are read."""


@dataclass(slots=True)
class _PartitionProgress:
    """How far a partition has been read."""

    start: Pointer
    next: Pointer
    order: int = 0
    """The highest order of a letter so far. It merges partitions into one order, the same for every reader."""


@dataclass(slots=True)
class _Parts:
    """A letter whose parts have not all been read."""

    event: Event
    pointers: list[Pointer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the records of one letter are."""

    partition: int
    pointers: tuple[Pointer, ...]


class LetterTopicReader:
    """The letter index of a topic, updated from where the last reading ended. Not thread-safe."""

    def __init__(
        self, stream: abc.TopicStream, held_bytes: int, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._budget_bytes = held_bytes
        self._monotonic_s = monotonic_s
        self._effects: dict[str, int] = {}
        self._begin()

    def catch_up(self, through: Mapping[int, Pointer]) -> LetterIndex:
        """The index after reading everything in the topic, at least `through` these pointers.

        A topic that does not exist yet has no letters.
        """
        for _ in range(_BEGINNINGS):
            try:
                partitions = self._stream.partitions()
            except UnknownTopicError:
                self._begin()
                return self._index
            try:
                spans = {partition: self._stream.span(partition) for partition in partitions}
                if any(self._has_lost(partition, *span) for partition, span in spans.items()):
                    self._begin()
                for partition, (start, end) in spans.items():
                    progress = self._progress.setdefault(partition, _PartitionProgress(start, start))
                    self._read_on(partition, progress, max(end, through.get(partition, -1) + 1))
                return self._index
            except OffsetOutOfRangeError as error:
                logger.info("reading the dead letters in %r again from their start: %s", self._stream.topic, error)
                self._begin()
            except BaseException:
                self._begin()  # it is unknown whether the last record was applied
                raise
        raise StoreUnavailableError(
            f"the dead letters in topic {self._stream.topic!r} expire faster than they can be read: give the topic a "
            "longer retention"
        )

    def letters(self, ids: Sequence[str]) -> list[DeadLetter]:
        """These letters with their contents."""
        try:
            return self._index.letters(ids, self._fetch)
        except OffsetOutOfRangeError as error:
            raise StoreUnavailableError(f"dead letters expired while they were read; try again: {error}") from error

    def expect(self, operation: str) -> None:
        """Start counting what this operation changes."""
        self._effects[operation] = 0

    def effect(self, operation: str) -> int:
        return self._effects.pop(operation)

    def _begin(self) -> None:
        self._index = LetterIndex(self._budget_bytes)
        self._progress: dict[int, _PartitionProgress] = {}
        self._open: dict[tuple[str, str], _Parts] = {}
        self.holds = Holds(self._monotonic_s)
        self._effects = dict.fromkeys(self._effects, 0)

    def _has_lost(self, partition: int, start: Pointer, end: Pointer) -> bool:
        """Whether records that were read no longer exist: then neither do their letters."""
        progress = self._progress.get(partition)
        return progress is not None and (start > progress.start or end < progress.next)

    def _read_on(self, partition: int, progress: _PartitionProgress, end: Pointer) -> None:
        empty_reads = 0
        while progress.next < end:
            batch = self._stream.read(partition, progress.next, _READ_RECORDS, _WAIT_S)
            for record in batch:
                self._note(record, progress)
            empty_reads = empty_reads + 1 if batch.next <= progress.next else 0
            if empty_reads >= _EMPTY_READS:
                raise self._silent(partition, progress.next)
            progress.next = max(progress.next, batch.next)

    def _note(self, record: Record, progress: _PartitionProgress) -> None:
        sign = sign_of(record)
        if sign is not None:
            self.holds.apply(sign)
            return
        try:
            decoded = read_record(record)
        except NotALetter as error:
            logger.warning("%s is not a dead letter: %s", record.place, error)
            return
        progress.order = max(progress.order, decoded.order)
        rank = (progress.order, record.partition, record.offset)
        if decoded.parts > 1:
            self._add_part(decoded, record, rank)
            return
        event = decoded.event
        if event is None:
            return
        is_effective = self._index.apply(event, rank, _Source(record.partition, (record.offset,)))
        if is_effective and decoded.operation in self._effects:
            self._effects[decoded.operation] += 1

    def _add_part(self, decoded: DecodedRecord, record: Record, rank: tuple[int, ...]) -> None:
        """Add a part. A letter exists once its last part does; without it, its writer died before finishing."""
        name = (decoded.id, decoded.operation)
        if decoded.event is not None:
            self._open[name] = _Parts(decoded.event)
        parts = self._open.get(name)
        if parts is None or decoded.part != len(parts.pointers) + 1:  # stored twice, or after a gap
            return
        parts.pointers.append(record.offset)
        if decoded.part == decoded.parts:
            del self._open[name]
            source = _Source(record.partition, tuple(parts.pointers))
            self._index.apply(parts.event, rank, source, is_whole=False)

    def _fetch(self, sources: Sequence[_Source]) -> list[DeadLetter]:
        found: dict[tuple[int, Pointer], Record] = {}
        for partition in {source.partition for source in sources}:
            pointers = sorted({p for source in sources if source.partition == partition for p in source.pointers})
            for record in self._read_at(partition, pointers):
                found[partition, record.offset] = record
        letters = []
        for source in sources:
            decoded = [read_record(found[source.partition, pointer]) for pointer in source.pointers]
            event = decoded[0].event
            assert event is not None
            assert event.letter is not None
            letter = event.letter
            letters.append(letter if len(decoded) == 1 else join(letter, [part.payload for part in decoded]))
        return letters

    def _read_at(self, partition: int, pointers: Sequence[Pointer]) -> Iterator[Record]:
        """The records at these pointers; those that are close to each other with one read."""
        left = list(reversed(pointers))
        empty_reads = 0
        while left:
            first = left[-1]
            near = next(pointer for pointer in left if pointer < first + _NEAR_RECORDS)
            batch = self._stream.read(partition, first, near - first + 1, _WAIT_S)
            if batch.next > first and not _holds(batch, first):
                raise OffsetOutOfRangeError(f"{self._stream.topic}-{partition}", first, batch.next, batch.next)
            empty_reads = 0 if len(batch) else empty_reads + 1
            if empty_reads >= _EMPTY_READS:
                raise self._silent(partition, first)
            for record in batch:
                if left and record.offset == left[-1]:
                    left.pop()
                    yield record

    def _silent(self, partition: int, pointer: Pointer) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the dead letters in {self._stream.topic}-{partition} could not be read from {pointer} on: the stream "
            f"returned nothing for {_EMPTY_READS * _WAIT_S:g} s; check that it runs"
        )


def _holds(batch: Batch, pointer: Pointer) -> bool:
    return len(batch) > 0 and batch[0].offset == pointer
