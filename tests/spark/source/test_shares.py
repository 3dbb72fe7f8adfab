"""How much a batch takes, and how it is shared among tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.administration import PartitionId
from penstock.spark.source.admission import (
    ALIGN_FROM_MS,
    Admission,
    Alignment,
    Sized,
    proportional_shares,
    within_bytes,
    within_records,
)
from penstock.spark.source.origin import MOST_IN_A_TASK, WORTH_A_TASK, Range, split
from penstock.spark.source.positions import Pointers

A, B, C, D = (("topic", number) for number in range(4))


def partitions(most: int) -> st.SearchStrategy[PartitionId]:
    return st.integers(0, most).map(lambda number: ("topic", number))


AMOUNTS = st.dictionaries(partitions(40), st.integers(0, 10_000), max_size=12)
FEW = st.dictionaries(partitions(6), st.integers(0, 9), max_size=6)
TIMES = st.dictionaries(
    partitions(5), st.lists(st.integers(-1, 2 * ALIGN_FROM_MS), max_size=60), min_size=1, max_size=4
)
"""For each partition the timestamps of its records, in any order; -1 is none."""


@given(AMOUNTS | FEW, st.integers(1, 50_000) | st.integers(1, 20), st.integers(0, 100))
@example({A: 8, B: 1, C: 10}, 18, 0)
def test_shares_are_as_much_as_the_limit_allows_in_proportion_to_what_waits(
    amounts: Pointers, limit: int, turn: int
) -> None:
    shares = proportional_shares(amounts, limit, turn)
    waiting = [each for each, amount in amounts.items() if amount]
    assert shares.keys() == amounts.keys()
    assert sum(shares.values()) == min(limit, sum(amounts.values()))
    assert all(0 <= shares[each] <= amounts[each] for each in amounts)
    if limit >= len(waiting):
        assert all(shares[each] >= 1 for each in waiting)
    if sum(amounts.values()) > limit:
        exact = {each: limit * amounts[each] / sum(amounts.values()) for each in waiting}
        assert all(abs(shares[each] - exact[each]) <= len(waiting) for each in waiting)


def test_where_there_are_more_partitions_than_the_limit_each_has_its_turn() -> None:
    amounts = {A: 10**6, B: 10**6, C: 1}
    served = [proportional_shares(amounts, 1, turn) for turn in range(3)]
    assert [max(shares, key=lambda each: shares[each]) for shares in served] == [A, B, C]


class Topic:
    """Partitions whose records have these timestamps, read batch by batch."""

    def __init__(self, times_ms: dict[PartitionId, list[int]], alignment: Alignment = "auto") -> None:
        self.times_ms = times_ms
        self._newest_ms = {each: list(accumulate(its, max)) for each, its in times_ms.items()}
        self.admission = Admission(alignment, self._at_time, lambda partition, pointer: times_ms[partition][pointer])

    def _at_time(self, time_ms: int, partitions: Iterable[PartitionId]) -> Pointers:
        return {each: bisect_left(self._newest_ms[each], time_ms) for each in partitions}

    def batches(
        self, max_records: int | None, max_bytes: int | None = None, sized: Sized | None = None
    ) -> Iterator[tuple[Pointers, Pointers]]:
        begin = dict.fromkeys(self.times_ms, 0)
        ends = {each: len(its) for each, its in self.times_ms.items()}
        while begin != ends:
            reached = self.admission.within(
                begin, ends, max_records=max_records, max_bytes=max_bytes, sized=sized or of_one_byte
            )
            yield begin, reached
            begin = reached

    def late_rows(self, limit: int) -> int:
        """How many rows are older than the newest one of the batches before theirs: with no grace at all."""
        late, newest_ms = 0, -1
        for begin, reached in self.batches(limit):
            read = [at for each, its in self.times_ms.items() for at in its[begin[each] : reached[each]]]
            late += sum(at < newest_ms for at in read)
            newest_ms = max(newest_ms, *read)
        return late


def of_one_byte(partition: PartitionId, begin: int, end: int, size_bytes: int) -> tuple[int, int]:
    taken = min(end - begin, size_bytes)
    return begin + taken, taken


@given(TIMES, st.integers(1, 40), st.sampled_from(["auto", "timestamp", "never"]), st.booleans())
def test_batches_keep_to_the_limit_and_read_everything_whatever_the_timestamps_are(
    times_ms: dict[PartitionId, list[int]], limit: int, alignment: Alignment, in_bytes: bool
) -> None:
    topic = Topic(times_ms, alignment)
    taken = [
        sum(reached[each] - begin[each] for each in begin)
        for begin, reached in topic.batches(None if in_bytes else limit, limit if in_bytes else None)
    ]
    assert all(0 < each <= limit for each in taken), taken
    assert sum(taken) == sum(map(len, times_ms.values()))
    if not in_bytes:
        assert all(each == limit for each in taken[:-1]), "a batch takes as much as it may"


def test_unequal_partitions_over_a_short_time_are_shared_in_proportion() -> None:
    """Perhaps they were loaded one after the other, so that their timestamps say nothing about the events."""
    topic = Topic({A: list(range(11_000)), B: list(range(11_000, 12_000))})
    _, reached = next(topic.batches(120))
    assert reached == {A: 110, B: 10}


def test_partitions_whose_records_came_in_different_hours_are_read_in_the_order_of_their_timestamps() -> None:
    hour_ms = 3_600_000
    busy_early = [*range(0, hour_ms, 1_000), *range(hour_ms, 2 * hour_ms, 60_000)]
    busy_late = [*range(0, hour_ms, 60_000), *range(hour_ms, 2 * hour_ms, 1_000)]
    once_an_hour = [hour_ms // 2, 3 * hour_ms // 2]
    partitions = {A: busy_early, B: busy_late, C: once_an_hour, D: []}
    assert Topic(partitions).late_rows(500) == 0
    assert Topic(partitions, "never").late_rows(500) > 1_000


def test_a_partition_that_is_ahead_of_the_others_waits_for_what_was_there_and_no_longer() -> None:
    """Its clock is a year fast, or one record's is: it goes on, also where the others never come to an end."""
    year_ms = 365 * 86_400_000
    steady = list(range(0, 7_200_000, 10))
    topic = Topic({A: steady, B: [year_ms, *range(100)]}, "timestamp")
    held = 0
    begin, ends = {A: 0, B: 0}, {A: 10_000, B: 101}
    while begin[B] < 101:
        begin = topic.admission.within(begin, ends, max_records=1_000, max_bytes=None, sized=of_one_byte)
        ends[A] = min(len(steady), ends[A] + 1_000)  # it grows as fast as it is read
        held += 1
    assert 9 <= held <= 60
    assert begin[A] < ends[A]


@given(AMOUNTS, st.integers(1, 1000))
def test_ends_within_records_go_on_where_anything_is_there(amounts: Pointers, limit: int) -> None:
    begin = dict.fromkeys(amounts, 100)
    ends = {each: 100 + amount for each, amount in amounts.items()}
    reached = within_records(begin, ends, limit)
    assert sum(reached[each] - begin[each] for each in begin) == min(limit, sum(amounts.values()))


@given(AMOUNTS, st.integers(1, 1000), st.integers(1, 50))
def test_ends_within_bytes_take_no_more_than_the_limit_and_one_record(
    amounts: Pointers, limit: int, record_bytes: int
) -> None:
    def sized(partition: PartitionId, begin: int, end: int, size_bytes: int) -> tuple[int, int]:
        count = min(end - begin, max(1, size_bytes // record_bytes))
        return begin + count, count * record_bytes

    begin = dict.fromkeys(amounts, 0)
    reached = within_bytes(begin, amounts, limit, sized)
    taken = sum(reached.values())
    assert taken * record_bytes < limit + record_bytes * max(1, len(amounts))
    if sum(amounts.values()) * record_bytes > limit > record_bytes * len(amounts):
        total = sum(amounts.values())
        assert all(
            abs(reached[each] - limit * amounts[each] / record_bytes / total) < 2 + len(amounts) for each in begin
        )
    assert taken > 0 or not any(amounts.values())


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 300_000)), max_size=20),
    st.integers(1, 16),
)
def test_tasks_read_everything_once_and_in_order(sizes: list[tuple[int, int]], tasks: int) -> None:
    ranges = [Range("topic", number, start, start + size) for number, (start, size) in enumerate(sizes)]
    shares = split(ranges, tasks)
    assert all(shares)
    assert len(shares) <= tasks
    reached = {each.partition: each.start for each in ranges}
    for piece in (piece for share in shares for piece in share):
        assert piece.start == reached[piece.partition]
        assert piece.end > piece.start
        reached[piece.partition] = piece.end
    assert reached == {each.partition: each.end for each in ranges}
    amounts = [sum(piece.end - piece.start for piece in share) for share in shares]
    assert max(amounts[:-1], default=0) == min(amounts[:-1], default=0)


def test_one_large_partition_keeps_all_cores_busy() -> None:
    assert len(split([Range("topic", 0, 0, 10 * WORTH_A_TASK)], 4)) == 4


def test_many_small_partitions_are_one_task() -> None:
    assert len(split([Range("topic", number, 0, 10) for number in range(100)], 4)) == 1


def test_a_task_is_never_so_large_that_trying_it_again_hurts() -> None:
    shares = split([Range("topic", 0, 0, 10 * MOST_IN_A_TASK)], 2)
    assert len(shares) == 10
