"""The history: what is kept, how long, what it costs, and what becomes of it when things go wrong."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.observe.facts import (
    GroupFacts,
    LetterFacts,
    PartitionFacts,
    PipelineFacts,
    QueryFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)
from penstock.observe.history.history import COARSE_KEPT_S, FINE_KEPT_S, METRICS, History, measured, used_bytes

BEGAN_S = 1_800_000_000
QUERY = QueryFacts("spend", "running", 3, 10, 9, 0, 0, 5, 0.5, 20.0, 7, None, None, BEGAN_S * 1000)


def snapshot(at_s: int, *, lag: int = 0, rate: float = 0.0, topics: int = 1, problem: str | None = None) -> Snapshot:
    readers = (ReaderFacts("billing", "topic-0", 0, 0, 0, lag, lag_s=float(lag)),)
    return Snapshot(
        at_s * 1000,
        {
            f"topic-{number}": TopicFacts(
                f"topic-{number}", (PartitionFacts(f"topic-{number}", 0, 0, 10, 100),), rate_per_s=rate
            )
            for number in range(topics)
        },
        {"billing": GroupFacts("billing", "stable", 1, readers, rate_per_s=1.0)},
        {"orders.dlq": LetterFacts("orders.dlq", 3)},
        {"usage": PipelineFacts("usage", "/nowhere", True, (QUERY,))},
        problem=problem,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "console" / "history.db"


def rows(path: Path, table: str = "fine") -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def lags(history: History, since_s: int, points: int = 300) -> list[tuple[int, float]]:
    return [
        (at_ms // 1000, value) for at_ms, value in history.series("group", "billing", "lag", since_s * 1000, points)
    ]


def test_what_was_added_is_told_also_by_one_who_opens_the_file_later(path: Path) -> None:
    history = History(path)
    for step in range(12):
        history.add(snapshot(BEGAN_S + 10 * step, lag=100 * step))
    history.close()
    again = History(path)
    found = lags(again, BEGAN_S)
    assert found[0] == (BEGAN_S, 0)
    assert found[-1][1] == 1_100
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert again.series("letters", "orders.dlq", "waiting", 0)[0][1] == 3
    assert again.series("system", "", "lag", BEGAN_S * 1000)[-1][1] == 1_100
    again.close()


def test_every_metric_that_is_promised_is_measured() -> None:
    kinds = {(kind, metric) for kind, _, metric in measured(snapshot(BEGAN_S))}
    assert kinds == {(kind, metric) for kind in METRICS for metric in METRICS[kind]}


def test_a_metric_that_there_is_not_is_refused_by_name(path: Path) -> None:
    history = History(path)
    with pytest.raises(ConfigError, match="no history of group size_bytes"):
        history.series("group", "billing", "size_bytes", 0)
    assert history.series("group", "nobody", "lag", 0) == []
    history.close()


def test_a_thousand_topics_where_nothing_happens_cost_one_row_each_look(path: Path) -> None:
    history = History(path)
    history.add(snapshot(BEGAN_S, topics=1_000))
    before = rows(path)
    for step in range(1, 20):
        history.add(snapshot(BEGAN_S + 5 * step, topics=1_000))
    assert rows(path) == before
    assert rows(path, "watched") == 1
    history.close()


def test_no_more_points_come_than_were_asked_for(path: Path) -> None:
    history = History(path)
    for step in range(200):
        history.add(snapshot(BEGAN_S + 10 * step, lag=step))
    for points in (1, 2, 7, 50, 1_000):
        found = lags(history, BEGAN_S, points)
        assert 1 <= len(found) <= max(2, points)
        assert found[-1][1] >= found[0][1]
    history.close()


def test_hours_in_which_nobody_looked_are_missing_and_not_made_up(path: Path) -> None:
    history = History(path)
    history.add(snapshot(BEGAN_S, lag=5))
    history.add(snapshot(BEGAN_S + 60, lag=5))
    history.close()
    history = History(path)
    history.add(snapshot(BEGAN_S + 7_200, lag=9))
    history.add(snapshot(BEGAN_S + 7_260, lag=9))
    found = lags(history, BEGAN_S, 1_000)
    assert {value for _, value in found} == {5, 9}
    assert not [at for at, _ in found if BEGAN_S + 120 < at < BEGAN_S + 7_190]
    history.close()


def test_a_snapshot_with_a_problem_tells_nothing_new(path: Path) -> None:
    history = History(path)
    history.add(snapshot(BEGAN_S, lag=5, problem="the broker does not answer"))
    assert lags(history, 0) == []
    history.close()


def test_what_is_gone_ends_in_its_series(path: Path) -> None:
    history = History(path)
    history.add(snapshot(BEGAN_S, topics=2))
    history.add(snapshot(BEGAN_S + 20, topics=1))
    history.add(snapshot(BEGAN_S + 80, topics=1))
    found = history.series("topic", "topic-1", "records", BEGAN_S * 1000)
    assert found
    assert found[-1][0] < (BEGAN_S + 30) * 1000
    history.close()


def test_old_steps_are_summed_up_and_older_ones_go(path: Path) -> None:
    history = History(path)
    days = COARSE_KEPT_S // 86_400 + 3
    every_s = 60
    for step in range(days * 86_400 // every_s // 12):  # two hours of each day, so that the test is quick
        day, second = divmod(step * every_s, 7_200)
        history.add(snapshot(BEGAN_S + day * 86_400 + second, lag=step % 7))
    now_s = BEGAN_S + (days - 1) * 86_400 + 7_140
    with sqlite3.connect(path) as connection:
        (oldest,) = connection.execute("SELECT min(at_s) FROM coarse").fetchone()
        fine = connection.execute("SELECT count(*) FROM fine WHERE at_s < ?", (now_s - FINE_KEPT_S - 3_600,)).fetchone()
    assert oldest >= now_s - COARSE_KEPT_S - 86_400
    assert fine[0] <= 30, "only what has not changed since"
    week_ago = lags(history, now_s - 7 * 86_400 - 3_600)
    assert week_ago
    assert all(0 <= value <= 6 for _, value in week_ago)
    assert sum(value for _, value in week_ago) / len(week_ago) == pytest.approx(3, abs=0.3), "means are kept"
    history.close()


def test_a_file_that_would_grow_too_large_lets_the_oldest_go(path: Path) -> None:
    limit_bytes = 300_000
    history = History(path, limit_bytes=limit_bytes)
    for step in range(300):
        history.add(snapshot(BEGAN_S + 80 * step, topics=60, rate=float(step), lag=step))
    history.close()
    with sqlite3.connect(path) as connection:
        assert used_bytes(connection) <= limit_bytes * 1.3
    again = History(path)
    assert lags(again, BEGAN_S + 80 * 290)[-1][1] == 299, "the newest is there"
    again.close()


@pytest.mark.parametrize("damage", [b"this is no database" * 100, b""])
def test_a_damaged_file_is_put_aside_and_a_new_one_begun(
    path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(path)
    for step in range(200):
        history.add(snapshot(BEGAN_S + 10 * step, topics=20, rate=float(step)))
    history.close()
    content = bytearray(path.read_bytes())
    content[: len(damage) or 4096] = damage or os.urandom(4096)
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        again = History(path)
    assert "is damaged" in caplog.text
    again.add(snapshot(BEGAN_S + 5_000, lag=4))
    assert lags(again, BEGAN_S) == [(BEGAN_S + 5_000, 4)]
    assert len(list(path.parent.glob("history.db.damaged-*"))) == 1
    again.close()


def test_damage_that_is_met_later_ends_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(path)
    for step in range(300):
        history.add(snapshot(BEGAN_S + 10 * step, topics=30, rate=float(step)))
    history.close()
    content = bytearray(path.read_bytes())
    content[8_192 : len(content)] = os.urandom(len(content) - 8_192)
    path.write_bytes(content)
    again = History(path)
    with caplog.at_level(logging.ERROR):
        for step in range(3):
            again.add(snapshot(BEGAN_S + 10_000 + 10 * step, topics=30, lag=8))
        assert lags(again, BEGAN_S + 10_000)[-1][1] == 8
    assert "is damaged" in caplog.text
    again.close()


def test_two_consoles_may_keep_one_history(path: Path) -> None:
    one, two = History(path), History(path)
    for step in range(10):
        (one if step % 2 else two).add(snapshot(BEGAN_S + 10 * step, lag=step))
    for history in (one, two):
        found = lags(history, BEGAN_S)
        assert found[0] == (BEGAN_S, 0)
        assert found[-1][1] == 9
        history.close()


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    History(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer Penstock"):
        History(path)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.observe.test_history import BEGAN_S, snapshot
from penstock.observe.history.history import History
history = History(Path({path!r}))
for step in range(100_000):
    history.add(snapshot(BEGAN_S + 10 * step, topics=50, rate=float(step), lag=step))
    print(step, flush=True)
"""


def test_what_was_added_survives_a_kill(path: Path) -> None:
    root = str(Path(__file__).parents[2])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER.format(root=root, path=str(path))], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        last = 0
        for line in writer.stdout:
            last = int(line)
            if last >= 40:
                break
        writer.send_signal(signal.SIGKILL)
    finally:
        writer.kill()
        writer.communicate()
    history = History(path)
    found = lags(history, BEGAN_S, 100_000)
    assert found[-1][1] >= last, "what was told to be added is there"
    history.close()
