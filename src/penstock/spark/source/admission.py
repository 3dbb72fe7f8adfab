"""Admission control: how much of the backlog a limited batch reads from each partition.

By default, a partition's part is proportional to its backlog, as in Spark's own Kafka connector with
`maxOffsetsPerTrigger`: partitions of different sizes that cover the same time reach its end together. With equal parts,
a small partition would run ahead, and its watermark would make the rows of the others late.

The size of a backlog says nothing about time: a partition with few records, or with records of other hours, still runs
ahead. If record timestamps are known, all partitions are therefore cut at a common time. That is wrong if records were
loaded one partition after the other, as timestamps are then the time of loading: see `Alignment`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

from penstock.model import Record
from penstock.model.administration import PartitionId
from penstock.spark.source.positions import Pointers

Sized = Callable[[PartitionId, int, int, int], tuple[int, int]]
"""`(partition, begin, end, size_bytes)`: the pointer, at most `end`, up to which records from `begin` on fit into
`size_bytes`, and their size. At least one record is included, however large, so that every batch makes progress."""
AtTime = Callable[[int, Iterable[PartitionId]], Pointers]
"""`(time_ms, partitions)`: for each partition, the first pointer with this timestamp or a later one, else its end."""
TimeOf = Callable[[PartitionId, int], int | None]
"""`(partition, pointer)`: the timestamp of the first record from this pointer on, if it has one."""
Records = Callable[[PartitionId, int, int], Iterator[Record]]
"""`(partition, begin, end)`: the records between two pointers."""

Alignment = Literal["auto", "timestamp", "never"]
"""Whether partitions are cut at a common time. `auto`: if the middle half of the backlog, ordered by timestamp, covers
at least ALIGN_FROM_MS. Records of a shorter time may have been loaded in bulk, and are divided in proportion."""
ALIGNMENTS: Final = ("auto", "timestamp", "never")

ALIGN_FROM_MS: Final = 600_000
_EVERYTHING: Final = 1 << 62
_LATEST_MS: Final = (1 << 63) - 2
_DECIDE_EVERY: Final = 32
"""While there is a backlog, `auto` checks after this many batches whether it now covers a longer time."""


def proportional_shares(waiting: Mapping[PartitionId, int], limit: int, turn: int = 0) -> Pointers:
    """Divide `limit` among partitions in proportion to their backlog; all of it, if that is less.

    Each partition gets at least one if the limit allows it. Remainders rotate with `turn`, which the caller increments.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    served = _from_turn(sorted(partition for partition, amount in waiting.items() if amount > 0), turn)[:limit]
    shares = {each: max(1, limit * waiting[each] // total) if each in served else 0 for each in waiting}
    left = limit - sum(shares.values())
    with_more = [each for each in served if shares[each] < waiting[each]]
    by_remainder = sorted(with_more, key=lambda each: -(limit * waiting[each] % total))
    for partition in by_remainder[: max(0, left)]:
        shares[partition] += 1
    for _ in range(-left):
        shares[max(shares, key=lambda each: shares[each])] -= 1
    return shares


def within_records(begin: Pointers, ends: Pointers, limit: int, turn: int = 0) -> Pointers:
    """The ends of a batch of at most `limit` pointers, and so of at most `limit` records."""
    shares = proportional_shares({each: max(0, ends[each] - begin[each]) for each in begin}, limit, turn)
    return {partition: begin[partition] + shares[partition] for partition in begin}


def within_bytes(begin: Pointers, ends: Pointers, limit: int, sized: Sized, turn: int = 0) -> Pointers:
    """The ends of a batch of about `limit` bytes, in proportion to the backlog of each partition in bytes.

    A record that exceeds the rest of the limit is included, but then no record of another partition is.
    """
    waiting = {each: sized(each, begin[each], ends[each], _EVERYTHING)[1] for each in begin if ends[each] > begin[each]}
    if sum(waiting.values()) <= limit:
        return {each: max(begin[each], ends[each]) for each in begin}
    reached = dict(begin)
    left = limit
    total = sum(waiting.values())
    for partition in _from_turn(sorted(waiting), turn):
        if left <= 0:
            break
        part = max(1, min(left, left * waiting[partition] // max(1, total)))
        total -= waiting[partition]
        reached[partition], used_bytes = sized(partition, begin[partition], ends[partition], part)
        left -= used_bytes
    return reached


def within_counted(
    begin: Pointers,
    ends: Pointers,
    *,
    max_records: int | None,
    max_bytes: int | None,
    records: Records,
    by_time: bool,
    turn: int = 0,
) -> Pointers:
    """The ends of a batch on a stream whose pointers do not count records: found by reading the records.

    Partitions take turns, record by record; with `by_time`, in the order of the records' timestamps, and records
    without one first. The first record is included, however large.
    """
    reached = dict(begin)
    waiting = _from_turn(sorted(each for each in begin if ends[each] > begin[each]), turn)
    found = {each: records(each, begin[each], ends[each]) for each in waiting}
    ready: list[tuple[int, int, Record]] = []

    def look_at_next(number: int, taken: int) -> None:
        each = waiting[number]
        record = next(found[each], None)
        if record is None:
            reached[each] = ends[each]
        else:
            heapq.heappush(ready, ((record.timestamp_ms or 0) if by_time else taken, number, record))

    for number in range(len(waiting)):
        look_at_next(number, 0)
    taken = [0] * len(waiting)
    count = size_bytes = 0
    while ready and (max_records is None or count < max_records):
        _, number, record = heapq.heappop(ready)
        size_bytes += record_bytes(record)
        if max_bytes is not None and size_bytes > max_bytes and count:
            break
        count += 1
        reached[waiting[number]] = record.offset + 1
        taken[number] += 1
        look_at_next(number, taken[number])
    return reached


_AROUND_A_RECORD_BYTES: Final = 24
"""The approximate size of lengths, timestamp and pointer."""


def record_bytes(record: Record) -> int:
    """About how many bytes a record takes in a batch."""
    headers_bytes = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers_bytes + _AROUND_A_RECORD_BYTES


class Admission:
    """Decides where the batches of one query end. It remembers whose turn it is, and which partitions are held."""

    def __init__(self, alignment: Alignment, at_time: AtTime | None, time_of: TimeOf) -> None:
        """`at_time` is None if the stream cannot find records by time."""
        self._alignment: Alignment = alignment if at_time is not None else "never"
        self._at_time = at_time
        self._time_of = time_of
        self._turn = 0
        self._aligned = False
        self._undecided = True
        self._from_ms = 0
        """The time at which the last batch ended, where the search for the next one begins."""
        self._held: dict[PartitionId, Pointers] = {}
        """For each partition that is ahead, so that the last batches read nothing from it: the ends of the others when
        that began. It is freed once these were read, so that no partition starves."""
        self._disordered: set[PartitionId] = set()
        """Partitions with an earlier record that has a later timestamp than the backlog: they cannot be searched by
        time, and are divided in proportion."""

    def within(
        self, begin: Pointers, ends: Pointers, *, max_records: int | None, max_bytes: int | None, sized: Sized
    ) -> Pointers:
        """The ends of a batch that begins at `begin`, if there are records up to `ends`."""
        self._turn += 1
        reached = ends
        if max_bytes is not None:
            reached = self._limited(
                begin,
                reached,
                max_bytes,
                lambda first, last, limit: within_bytes(first, last, limit, sized, self._turn),
                lambda each, first, last: sized(each, first, last, _EVERYTHING)[1] if last > first else 0,
            )
        if max_records is not None:
            reached = self._limited(
                begin,
                reached,
                max_records,
                lambda first, last, limit: within_records(first, last, limit, self._turn),
                lambda each, first, last: last - first,
            )
        self._remember(begin, reached, ends)
        return reached

    def _limited(
        self,
        begin: Pointers,
        ends: Pointers,
        limit: int,
        share: Callable[[Pointers, Pointers, int], Pointers],
        amount: Callable[[PartitionId, int, int], int],
    ) -> Pointers:
        def taken(reached: Pointers) -> int:
            return sum(amount(each, begin[each], reached[each]) for each in begin)

        total = taken(ends)
        if total <= limit:
            return ends
        if not self._is_aligned(begin, ends, total, taken):
            return share(begin, ends, limit)
        freed = self._freed(begin, ends)
        fair = share(begin, ends, limit) if freed else begin
        reached = {each: fair[each] if each in freed else begin[each] for each in begin}
        left = limit - taken(reached)
        if left > 0:
            filled = {each: begin[each] if each in freed else ends[each] for each in begin}
            if taken(filled) > left:
                low, high = self._around(begin, filled, left, taken)
                spare = left - taken(low)
                filled = share(low, high, spare) if spare > 0 else low
            reached = {each: reached[each] if each in freed else filled[each] for each in begin}
        return reached

    def _is_aligned(self, begin: Pointers, ends: Pointers, total: int, taken: Callable[[Pointers], int]) -> bool:
        if self._alignment != "auto":
            return self._alignment == "timestamp"
        if self._undecided or (not self._aligned and self._turn % _DECIDE_EVERY == 0):
            first_ms = self._last_time_with(total // 4, begin, ends, taken, 0)
            last_ms = self._last_time_with(3 * total // 4, begin, ends, taken, first_ms)
            self._aligned = last_ms - first_ms >= ALIGN_FROM_MS
            self._undecided = False
        return self._aligned

    def _around(
        self, begin: Pointers, ends: Pointers, limit: int, taken: Callable[[Pointers], int]
    ) -> tuple[Pointers, Pointers]:
        """The ends of all partitions at the latest time within the limit, and one millisecond later."""
        time_ms = self._last_time_with(limit, begin, ends, taken, self._from_ms)
        self._from_ms = time_ms
        low = self._cut(begin, ends, time_ms)
        if taken(low) > limit:  # too many records have no timestamp
            return dict(begin), low
        return low, self._cut(begin, ends, time_ms + 1)

    def _last_time_with(
        self, limit: int, begin: Pointers, ends: Pointers, taken: Callable[[Pointers], int], from_ms: int
    ) -> int:
        """The latest time such that the backlog before it is within the limit; 0 if there is none."""

        def fits(time_ms: int) -> bool:
            return taken(self._cut(begin, ends, time_ms)) <= limit

        low, step = from_ms, 1_000
        if not fits(low):  # a new record is older than the earlier backlog
            low = 0
        while low + step < _LATEST_MS and fits(low + step):
            low, step = low + step, step * 8
        high = min(low + step, _LATEST_MS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _cut(self, begin: Pointers, ends: Pointers, time_ms: int) -> Pointers:
        """The end of each partition at this time."""
        if time_ms >= _LATEST_MS:
            return ends
        assert self._at_time is not None
        found = self._at_time(time_ms, [each for each in begin if ends[each] > begin[each]])
        return {each: max(begin[each], min(ends[each], found.get(each, ends[each]))) for each in begin}

    def _freed(self, begin: Pointers, ends: Pointers) -> set[PartitionId]:
        """The partitions that are not cut by time: they were held long enough, or are disordered."""
        freed = set()
        for each, others in self._held.items():
            if each not in begin or ends[each] <= begin[each] or each in self._disordered:
                continue
            if all(begin.get(other, end) >= end for other, end in others.items() if other != each):
                freed.add(each)
                continue
            time_ms = self._time_of(each, begin[each])
            if time_ms is None or time_ms < self._from_ms:
                self._disordered.add(each)
        return freed | self._disordered

    def _remember(self, begin: Pointers, reached: Pointers, ends: Pointers) -> None:
        if reached == ends:
            self._undecided, self._aligned = True, False
            self._held.clear()
            self._disordered.clear()
            return
        for each in begin:
            if reached[each] > begin[each] or ends[each] <= begin[each]:
                self._held.pop(each, None)
            else:
                self._held.setdefault(each, dict(ends))


def _from_turn(partitions: list[PartitionId], turn: int) -> list[PartitionId]:
    first = turn % len(partitions) if partitions else 0
    return partitions[first:] + partitions[:first]
