"""The tracker and its runs: what is finished, what is not, and what is saved of it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consuming.loop.finished_runs import RunSet
from penstock.consuming.loop.tracker import Tracker
from penstock.model import Batch, Checkpoint, CheckpointKey, Record, Status
from penstock.testing import VirtualClock
from tests.seeds import seed_of

KEY = CheckpointKey("group", "orders", 0)


def batch_of(pointers: list[int], start: int, end: int) -> Batch:
    return Batch("orders", 0, start, end, [Record("orders", 0, pointer, None, b"") for pointer in pointers])


def tracker(checkpoint: Checkpoint | None = None) -> Tracker:
    return Tracker(KEY, checkpoint or Checkpoint(0, 0), owner="me", handler="handle", clock=VirtualClock())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=40))
def test_runs_hold_exactly_what_was_added_and_never_touch(added: list[tuple[int, int]]) -> None:
    runs = RunSet()
    plain: set[int] = set()
    for first, length in added:
        runs.add(first, first + length)
        plain.update(range(first, first + length))
    assert {pointer for first, end in runs for pointer in range(first, end)} == plain
    assert [pointer in runs for pointer in range(80)] == [pointer in plain for pointer in range(80)]
    listed = list(runs)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(listed))


def test_the_start_moves_over_what_is_finished_without_a_gap() -> None:
    tracked = tracker()
    batch = batch_of([0, 1, 2, 3], 0, 4)
    assert tracked.read(batch) == [(0, 4)]
    tracked.succeeded(2, 4, 2, 1)
    assert (tracked.start, tracked.checkpoint().finished) == (0, ((2, 4),))
    tracked.succeeded(0, 1, 1, 1)
    assert (tracked.start, tracked.checkpoint().finished) == (1, ((2, 4),))
    tracked.succeeded(1, 2, 1, 1)
    assert (tracked.start, tracked.checkpoint().finished) == (4, ())


def test_gaps_between_pointers_do_not_hold_the_start_back() -> None:
    tracked = tracker()
    batch = batch_of([5, 9, 30], 0, 41)
    tracked.read(batch)
    for index in (2, 0, 1):
        tracked.succeeded(batch.edge(index), batch.edge(index + 1), 1, 1)
    assert tracked.start == 41


def test_an_empty_batch_moves_the_start_over_what_holds_nothing() -> None:
    tracked = tracker()
    assert tracked.read(batch_of([], 0, 7)) == []
    assert tracked.start == 7


def test_a_finished_run_that_the_start_has_passed_is_not_given_out_again_with_the_next_batch() -> None:
    tracked = tracker(Checkpoint(0, 8, finished=((2, 6),)))
    assert tracked.read(batch_of([0, 1, 2, 3], 0, 4)) == [(0, 2)]
    tracked.succeeded(0, 2, 2, 1)
    assert tracked.start == 6, "it passes what of the run has not even been read again"
    assert tracked.read(batch_of([4, 5, 6, 7], 4, 8)) == [(2, 4)]


def test_what_was_finished_before_a_restart_is_not_given_out_again() -> None:
    tracked = tracker(Checkpoint(2, 9, finished=((4, 6), (8, 9))))
    assert tracked.read(batch_of(list(range(2, 12)), 2, 12)) == [(0, 2), (4, 6), (7, 10)]
    tracked.succeeded(2, 4, 2, 1)
    assert tracked.start == 6


@pytest.mark.parametrize("round_number", range(20))
def test_in_whatever_order_records_finish_the_checkpoint_says_exactly_what_is_finished(round_number: int) -> None:
    chance = random.Random(seed_of() + round_number)
    pointers = sorted(chance.sample(range(1, 400), 100))
    batch = batch_of(pointers, 0, 400)
    tracked = tracker()
    tracked.read(batch)
    finished: set[int] = set()
    for index in chance.sample(range(100), chance.randrange(101)):
        tracked.succeeded(batch.edge(index), batch.edge(index + 1), 1, 1)
        finished.add(pointers[index])
    restored = tracker(tracked.checkpoint())
    start = restored.position
    again = batch_of([pointer for pointer in pointers if pointer >= start], start, 400)
    left = {again[index].offset for low, high in restored.read(again) for index in range(low, high)}
    assert left == set(pointers) - finished


def test_one_stuck_record_among_a_million_costs_one_run() -> None:
    tracked = tracker()
    for begin in range(0, 1_000_000, 10_000):
        tracked.read(Batch("orders", 0, begin, begin + 10_000, range(10_000)))  # type: ignore[arg-type]
        tracked.succeeded(max(begin, 1), begin + 10_000, 10_000, 1)
    checkpoint = tracked.checkpoint()
    assert (checkpoint.start, checkpoint.finished) == (0, ((1, 1_000_000),))


def test_attempts_and_errors_are_saved_and_restored() -> None:
    tracked = tracker()
    tracked.read(batch_of([0, 1], 0, 2))
    tracked.failed(1, 1, 2, "ValueError: no", 5)
    tracked.failed(1, 1, 2, "ValueError: still no", 6)
    restored = tracker(tracked.checkpoint())
    assert restored.attempts(1) == 2
    failing = restored.failing(1)
    assert failing is not None
    assert failing.error == "ValueError: still no"
    lines = tracked.change().history
    assert [(line.status, line.attempt, line.error) for line in lines] == [
        (Status.FAILED, 1, "ValueError: no"),
        (Status.FAILED, 2, "ValueError: still no"),
    ]


def test_plain_successes_of_many_batches_are_one_line_of_the_history() -> None:
    clock = VirtualClock()
    tracked = Tracker(KEY, Checkpoint(0, 0), owner="me", handler="handle", clock=clock)
    tracked.change()
    tracked.saved()
    for begin in range(0, 50, 10):
        tracked.read(batch_of(list(range(begin, begin + 10)), begin, begin + 10))
        tracked.succeeded(begin, begin + 10, 10, 7)
    assert tracked.change().history == ()
    clock.advance(2)
    (line,) = tracked.change().history
    assert (line.first, line.end, line.status, line.attempt) == (0, 50, Status.SUCCEEDED, 1)


def test_what_is_undone_leaves_no_trace() -> None:
    tracked = tracker()
    tracked.read(batch_of([0, 1, 2], 0, 3))
    before = tracked.checkpoint()

    def fails() -> None:
        with tracked.undone_on_error():
            tracked.succeeded(0, 2, 2, 1)
            tracked.keep({b"k": b"v"})
            tracked.remember("id")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert tracked.checkpoint() == before
    change = tracked.change(last=True)
    assert (change.history, dict(change.state), change.handled) == ((), {}, ())


def test_an_attempt_that_is_counted_before_it_is_made_is_counted_once() -> None:
    tracked = tracker()
    tracked.read(batch_of([0], 0, 1))
    assert tracked.begin_suspect(0) == 1
    assert tracked.attempts(0) == 0
    assert tracked.failed(0, 0, 1, "ValueError", 1).attempts == 1
    assert tracked.begin_suspect(0) == 2


def test_records_that_are_tried_together_are_marked_until_each_of_them_is_finished() -> None:
    tracked = tracker()
    tracked.read(batch_of([0, 1, 2], 0, 3))
    tracked.failed(1, 1, 2, "ValueError", 1)
    tracked.begin_suspects([0, 1, 2])
    assert [(each.pointer, each.attempts) for each in tracked.checkpoint().failing] == [(0, 0), (1, 1), (2, 0)]
    assert [tracked.attempts(pointer) for pointer in (0, 1, 2)] == [0, 1, 0], "it is no attempt of theirs"
    assert tracked.any_was_in_hand
    tracked.succeeded_after_failing(2, 2, 3, 1)
    assert [tracked.was_in_hand(pointer) for pointer in (0, 1, 2)] == [True, True, False]
    assert tracked.failed(0, 0, 1, "ValueError", 1).attempts == 1
    assert not tracked.was_in_hand(0)


def test_an_owner_that_ends_in_order_leaves_no_suspects() -> None:
    tracked = tracker()
    tracked.read(batch_of([0, 1, 2], 0, 3))
    failed = tracked.failed(1, 1, 2, "ValueError", 1)
    tracked.begin_suspects([0, 1, 2])
    tracked.succeeded_after_failing(0, 0, 1, 1)
    assert tracked.change(last=True).checkpoint.failing == (failed,)
    assert not tracked.any_was_in_hand
