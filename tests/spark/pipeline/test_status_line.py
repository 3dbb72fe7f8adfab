"""What a run shows of itself: lines that are drawn again on a terminal, log lines elsewhere."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.spark.pipeline import Pipeline
from penstock.spark.run.progress import QueryProgress
from penstock.spark.run.status_line import LOG_EVERY_S, MOST_LINES, StatusLine, describe, shown_meanwhile


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@dataclass
class Named:
    name: str
    path: str = "/checkpoints"


@dataclass
class Running:
    """As much of a pipeline as is shown."""

    label: str
    known: dict[str, QueryProgress]
    folder: Named = field(default_factory=lambda: Named("folder"))

    @property
    def queries(self) -> list[Named]:
        return [Named(name) for name in self.known]

    def progress(self) -> dict[str, QueryProgress]:
        return self.known


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def status(running: Any, clock: Clock, quiet: bool = False) -> StatusLine:
    return StatusLine([cast(Pipeline, running)], quiet=quiet, clock=clock)


@pytest.fixture
def progress() -> QueryProgress:
    return QueryProgress("spend", state="running", batch_id=3, rows_read=1_000, rows_written=7, lag=2)


def screen(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> Screen:
    made = Screen(is_terminal)
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("COLUMNS", "100")
    return made


def test_a_terminal_shows_rows_rate_lag_and_watermark(monkeypatch: pytest.MonkeyPatch, progress: QueryProgress) -> None:
    shown, clock = screen(monkeypatch, is_terminal=True), Clock()
    line = status(Running("usage", {"spend": progress}), clock)
    line.starting()
    clock.now_s += 2.0
    progress.rows_read = 5_000
    progress.watermark = "2026-01-01T12:00:10.000Z"
    line.update()
    last = shown.getvalue().rpartition("\x1b[J")[2]
    assert last == (
        "usage.spend: running · batch 3 · 5,000 rows read (2,000/s) · 7 written · lag 2 · watermark 2026-01…\r"
    )


def test_nothing_is_drawn_twice_in_an_instant_nor_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, progress: QueryProgress, caplog: pytest.LogCaptureFixture
) -> None:
    for is_terminal, quiet in ((True, True), (False, False), (False, True)):
        shown, clock = screen(monkeypatch, is_terminal), Clock()
        line = status(Running("usage", {"spend": progress}), clock, quiet)
        line.starting()
        line.update()
        clock.now_s += 1.0
        line.update()
        line.ended()
        assert shown.getvalue() == ""
    shown, clock = screen(monkeypatch, is_terminal=True), Clock()
    line = status(Running("usage", {"spend": progress}), clock)
    line.update()
    assert shown.getvalue() == ""


def test_without_a_terminal_there_is_a_line_in_the_log_every_minute(
    monkeypatch: pytest.MonkeyPatch, progress: QueryProgress, caplog: pytest.LogCaptureFixture
) -> None:
    screen(monkeypatch, is_terminal=False)
    clock = Clock()
    with caplog.at_level(logging.INFO, "penstock.spark"):
        line = status(Running("usage", {"spend": progress}), clock)
        line.started()
        for _ in range(int(2 * LOG_EVERY_S)):
            clock.now_s += 1.0
            line.update()
        progress.state = "stopped"
        line.ended()
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "pipeline usage has started: spend; checkpoints in /checkpoints"
    assert [text.partition(" ·")[0] for text in told[1:]] == [*2 * ["usage.spend: running"], "usage.spend: stopped"]


def test_many_queries_take_a_few_lines_and_the_cursor_goes_back_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screen(monkeypatch, is_terminal=True)
    queries = {f"q{number}": QueryProgress(f"q{number}") for number in range(MOST_LINES + 3)}
    status(Running("usage", queries), Clock()).starting()
    assert shown.getvalue().count("\n") == MOST_LINES
    assert shown.getvalue().endswith(f"and 3 more queries\x1b[{MOST_LINES}A\r")


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (QueryProgress("spend"), "spend: starting"),
        (QueryProgress("spend", state="running"), "spend: running · first batch in progress"),
        (
            QueryProgress("spend", state="waiting", error="ValueError: no, at usage.py:3 in f"),
            "spend: waiting to start again after ValueError: no, at usage.py:3 in f",
        ),
        (
            QueryProgress("spend", state="running", batch_id=0, watermark="1970-01-01T00:00:00.000Z", rows_late=3),
            "spend: running · batch 0 · 0 rows read (0/s) · 0 written · 3 late",
        ),
        (
            QueryProgress("spend", state="running", batch_id=0, rows_written=5, rows_refused=2),
            "spend: running · batch 0 · 0 rows read (0/s) · 5 written · 2 refused",
        ),
        (
            QueryProgress("spend", state="running", batch_id=0, rows_bad=1_002, batch_rows_bad=3, rows_dropped=4),
            "spend: running · batch 0 · 0 rows read (0/s) · 0 written · 1,002 bad (3 in this batch) · 4 dropped",
        ),
        (
            QueryProgress("spend", state="failed", error="ValueError: no, at usage.py:3 in f"),
            "spend: failed · ValueError: no, at usage.py:3 in f",
        ),
    ],
)
def test_a_query_is_described_in_a_line(progress: QueryProgress, text: str) -> None:
    assert describe("spend", progress, 0.0) == text


def test_what_takes_long_is_shown_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screen(monkeypatch, is_terminal=True)
    with shown_meanwhile("starting Spark on local[*]", quiet=False):
        pass
    assert shown.getvalue() in ("\r\x1b[J", "\r\x1b[Jstarting Spark on local[*]: 0 s\r\r\x1b[J")
