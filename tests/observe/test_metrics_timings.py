"""How long handlers take: what is timed alone, what together, and what is not timed at all."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from penstock.consuming.counts import BOUNDS_S, Counts, Timings
from penstock.consuming.workers.lanes import Lane, Task
from penstock.model import Batch, Record
from penstock.model.observing import OBSERVED


class HandClock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture(autouse=True)
def _timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBSERVED, "is_timed", True)


def laps_of(durations_s: Sequence[float], fails: bool = False) -> list[tuple[int, float]]:
    """What is noted of a task whose records take so long, the last one perhaps failing."""
    clock = HandClock()
    records = [Record("orders", 0, number, None, b"x") for number in range(len(durations_s))]
    batch = Batch("orders", 0, 0, len(records), records)
    task = Task(Lane(SimpleNamespace(), None), batch, 0, len(records), clock)  # type: ignore[arg-type]
    for indexes in task.slices():
        for index in indexes:
            clock.sleep(durations_s[index])
            if fails and index == len(records) - 1:
                task.lap(len(records))
                return task.laps or []
    task.lap(len(records))
    return task.laps or []


def test_slow_calls_are_timed_one_by_one_and_quick_ones_together() -> None:
    slow = laps_of([0.02, 0.03, 0.04])
    assert [count for count, _ in slow] == [1, 1, 1]
    assert [taken_s for _, taken_s in slow] == pytest.approx([0.02, 0.03, 0.04])
    quick = laps_of([0.0001] * 10)
    assert [count for count, _ in quick] == [1, 2, 4, 3]
    assert sum(taken_s for _, taken_s in quick) == pytest.approx(0.001)


def test_a_call_that_fails_is_timed_with_those_it_stood_among() -> None:
    laps = laps_of([0.02, 0.03], fails=True)
    assert [count for count, _ in laps] == [1, 1]
    assert [taken_s for _, taken_s in laps] == pytest.approx([0.02, 0.03])


def test_steps_hold_what_took_at_most_so_long() -> None:
    timings = Timings()
    timings.add_laps([(1, 0.01), (4, 0.008)])
    assert timings.steps[BOUNDS_S.index(0.01)] == 1
    assert timings.steps[BOUNDS_S.index(0.0025)] == 4
    assert timings.total_s == pytest.approx(0.018)


def test_nothing_is_timed_until_somebody_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBSERVED, "is_timed", False)
    assert laps_of([0.02, 0.03]) == []


def test_counts_add_up() -> None:
    one, other = Counts(succeeded=1, lost=2), Counts(succeeded=3)
    one.handling.add(0.002, 4)
    other.handling.add(0.002)
    other.handling.add(100.0)
    one.add(other)
    assert (one.succeeded, one.lost) == (4, 2)
    assert sum(one.handling.steps) == 6
    assert one.handling.steps[-1] == 1
    assert one.handling.total_s == pytest.approx(100.01)
