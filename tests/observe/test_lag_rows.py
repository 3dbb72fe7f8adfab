"""Lag by group and topic, from snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.observe.facts import GroupFacts, ReaderFacts, Snapshot, TopicFacts
from penstock.observe.history.history import History
from penstock.observe.lag_rows import lag_rows, recalled


def snapshot(at_s: float, members: int = 1, **topics: tuple[int, int]) -> Snapshot:
    """A group that reads topics, each given as where it is and where the topic ends."""
    readers = tuple(
        ReaderFacts("billing", topic, 0, committed, 0, end, lag_s=float(end - committed))
        for topic, (committed, end) in topics.items()
    )
    facts = {topic: TopicFacts(topic, (), retention_ms=1_000_000) for topic in topics}
    return Snapshot(round(at_s * 1000), facts, {"billing": GroupFacts("billing", "stable", members, readers)})


def test_a_group_that_reads_two_topics_has_a_row_for_each_with_its_own_pace() -> None:
    seen = [snapshot(second, a=(10 * second, 100), b=(0, 100 + second)) for second in range(5)]
    a, b = lag_rows(seen)
    assert (a.topic, a.lag, a.rate_per_s, a.time_to_drain_s, a.is_growing) == ("a", 60, 10, 6, False)
    assert (b.topic, b.lag, b.rate_per_s, b.time_to_drain_s, b.is_growing) == ("b", 104, 0, None, True)


def test_only_what_was_asked_for_is_told() -> None:
    seen = [snapshot(0, a=(0, 10), b=(0, 10))]
    assert [row.topic for row in lag_rows(seen, topics=["b"])] == ["b"]
    assert lag_rows(seen, groups=["nobody"]) == []


def test_one_look_tells_the_lag_and_no_pace() -> None:
    (row,) = lag_rows([snapshot(0, a=(4, 10))])
    assert (row.lag, row.lag_s, row.rate_per_s, row.time_to_drain_s) == (6, 6.0, None, None)


def test_a_group_that_was_moved_while_nobody_was_in_it_has_no_pace() -> None:
    (row,) = lag_rows([snapshot(0, 0, a=(0, 100)), snapshot(5, 0, a=(100, 100))])
    assert row.rate_per_s is None
    (row,) = lag_rows([snapshot(0, a=(100, 100)), snapshot(5, a=(0, 100))])
    assert (row.rate_per_s, row.time_to_drain_s, row.is_growing) == (None, None, False)


def test_a_history_knows_the_pace_after_a_single_look(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    began_s = 1_800_000_000
    for second in range(0, 60, 5):
        group = GroupFacts(
            "billing",
            "stable",
            1,
            (ReaderFacts("billing", "a", 0, 10 * second, 0, 5_000, lag_s=100.0 + second),),
            rate_per_s=10.0,
        )
        history.add(Snapshot((began_s + second) * 1000, groups={"billing": group}))
    now = snapshot(began_s + 60, a=(600, 5_000))
    found = recalled(now, history)
    assert found is not None
    (row,) = lag_rows([found])
    assert row.rate_per_s == 10
    assert row.time_to_drain_s == pytest.approx(440, rel=0.25)
    assert row.time_to_loss_s is None or row.time_to_loss_s >= 0
    assert recalled(snapshot(began_s + 60, a=(0, 1), b=(0, 1)), history) is None, "which topic is it that it reads?"
    assert recalled(snapshot(began_s + 3_600, a=(600, 5_000)), history) is None, "what is old says nothing"
    history.close()
