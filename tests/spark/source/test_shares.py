"""How much a batch takes, and how it is shared among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.admission import fair_shares, within_bytes, within_records
from penstock.spark.source.origin import Range
from penstock.spark.source.splitting import MOST_IN_A_TASK, WORTH_A_TASK, split

AMOUNTS = st.dictionaries(st.integers(0, 40), st.integers(0, 10_000), max_size=12)


@given(AMOUNTS, st.integers(1, 50_000), st.integers(0, 100))
def test_shares_are_as_much_as_the_limit_allows_and_fair(amounts: dict[int, int], limit: int, turn: int) -> None:
    shares = fair_shares(amounts, limit, turn)
    assert shares.keys() == amounts.keys()
    assert sum(shares.values()) == min(limit, sum(amounts.values()))
    assert all(0 <= shares[each] <= amounts[each] for each in amounts)
    cut = [shares[each] for each in amounts if shares[each] < amounts[each]]
    for share in cut:
        assert all(share >= other - 1 for other in shares.values())


def test_where_there_are_more_partitions_than_the_limit_each_has_its_turn() -> None:
    amounts = {0: 10**6, 1: 10**6, 2: 1}
    served = [fair_shares(amounts, 1, turn) for turn in range(3)]
    assert [max(shares, key=lambda each: shares[each]) for shares in served] == [0, 1, 2]


@given(AMOUNTS, st.integers(1, 1000))
def test_ends_within_records_go_on_where_anything_is_there(amounts: dict[int, int], limit: int) -> None:
    begin = dict.fromkeys(amounts, 100)
    ends = {each: 100 + amount for each, amount in amounts.items()}
    reached = within_records(begin, ends, limit)
    assert sum(reached[each] - begin[each] for each in begin) == min(limit, sum(amounts.values()))


@given(AMOUNTS, st.integers(1, 1000), st.integers(1, 50))
def test_ends_within_bytes_take_no_more_than_the_limit_and_one_record(
    amounts: dict[int, int], limit: int, record_bytes: int
) -> None:
    def sized(partition: int, begin: int, end: int, size_bytes: int) -> tuple[int, int]:
        count = min(end - begin, max(1, size_bytes // record_bytes))
        return begin + count, count * record_bytes

    begin = dict.fromkeys(amounts, 0)
    reached = within_bytes(begin, amounts, limit, sized)
    taken = sum(reached.values())
    assert taken * record_bytes < limit + record_bytes * max(1, len(amounts))
    assert taken > 0 or not any(amounts.values())


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 300_000)), max_size=20),
    st.integers(1, 16),
)
def test_tasks_read_everything_once_and_in_order(sizes: list[tuple[int, int]], tasks: int) -> None:
    ranges = [Range(number, start, start + size) for number, (start, size) in enumerate(sizes)]
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
    assert len(split([Range(0, 0, 10 * WORTH_A_TASK)], 4)) == 4


def test_many_small_partitions_are_one_task() -> None:
    assert len(split([Range(number, 0, 10) for number in range(100)], 4)) == 1


def test_a_task_is_never_so_large_that_trying_it_again_hurts() -> None:
    shares = split([Range(0, 0, 10 * MOST_IN_A_TASK)], 2)
    assert len(shares) == 10
