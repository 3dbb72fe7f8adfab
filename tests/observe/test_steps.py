"""Values that hold until they change, and summing them up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.history.history import Step, coarser, means, merged

steps_of = st.lists(
    st.tuples(st.integers(0, 400), st.one_of(st.none(), st.integers(0, 100).map(float))), max_size=20
).map(lambda found: sorted(dict(found).items()))


def value_at(steps: list[Step], at: int) -> float | None:
    return next((value for since, value in reversed(steps) if since <= at), None)


def test_a_mean_weighs_values_by_how_long_they_held() -> None:
    assert means([(0, 10.0), (60, 20.0)], [(0, 80)], [0, 80]) == [(0, 12.5)]


def test_what_nobody_looked_at_is_left_out() -> None:
    steps: list[Step] = [(0, 10.0), (40, None), (60, 30.0)]
    assert means(steps, [(0, 20), (50, 80)], [0, 20, 40, 60, 80]) == [(0, 10.0), (60, 30.0)]


def test_spans_that_nearly_touch_are_one() -> None:
    assert merged([(50, 60), (0, 10), (15, 20)], 5) == [(0, 20), (50, 60)]


@given(steps_of, st.integers(1, 60))
def test_means_are_those_of_every_second(steps: list[Step], length: int) -> None:
    edges = list(range(0, 400 + length, length))
    expected: list[Any] = []
    for start, end in itertools.pairwise(edges):
        known = [value for at in range(start, end) if (value := value_at(steps, at)) is not None]
        if known:
            expected.append((start, pytest.approx(sum(known) / len(known))))
    assert means(steps, [(0, edges[-1])], edges) == expected


@given(steps_of, st.integers(1, 60), st.integers(0, 200))
def test_coarser_steps_have_the_same_mean_in_every_bucket(steps: list[Step], length: int, since: int) -> None:
    until = 400 // length * length + length
    since = since // length * length
    found = coarser(steps, length, since, until)
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    held = [(-1, value_at([step for step in steps if step[0] < since], since)), *found]
    for start in range(since, until, length):
        known = [value for at in range(start, start + length) if (value := value_at(steps, at)) is not None]
        expected = pytest.approx(sum(known) / len(known)) if known else None
        assert value_at(held, start) == expected, f"in the bucket at {start}"


@given(steps_of, st.integers(1, 60), st.integers(1, 6))
def test_summing_up_piece_by_piece_is_summing_up_at_once(steps: list[Step], length: int, pieces: int) -> None:
    until = (400 // length + 1) * length
    edges = sorted({until * number // pieces // length * length for number in range(pieces + 1)})
    found: dict[int, float | None] = {}
    for since, end in itertools.pairwise(edges):
        found |= dict(coarser(steps, length, since, end))
    whole = coarser(steps, length, 0, until)
    for start in range(0, until, length):
        assert value_at(sorted(found.items()), start) == value_at(whole, start)
