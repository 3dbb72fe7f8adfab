"""What `--switch` means, and what is shown while a version catches up."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import typer

pytest.importorskip("pyspark", reason="pyspark is not installed: it comes with penstock[spark]")

from penstock.cli.comparisons import print_comparisons
from penstock.cli.reprocess import Watch, should_switch
from penstock.spark.run.progress import QueryProgress
from penstock.spark.versions.comparing import Comparison, Example

SAME = {"spend": Comparison("key", 5, 0, 0, 0)}
OTHER = {"spend": Comparison("key", 5, 0, 0, 0), "late": Comparison("record", 1, 0, 2, 0)}


def test_readers_are_switched_as_was_wished() -> None:
    for comparisons in (SAME, OTHER):
        assert should_switch("always", "usage", "v2", comparisons)
        assert not should_switch("never", "usage", "v2", comparisons)
    assert should_switch("if-same", "usage", "v2", SAME)
    assert not should_switch("if-same", "usage", "v2", OTHER)


def test_who_is_asked_decides_and_nobody_to_ask_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(question: str, **_: Any) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(typer, "confirm", answer)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert not should_switch("ask", "usage", "v2", SAME)
    assert asked == []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert should_switch("ask", "usage", "v2", SAME)
    assert asked == ["Switch the readers of usage to version v2?"]


def test_differences_are_shown_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    found = Comparison("key", 1_000, 0, 0, 1, (Example("different", b"k", b"x" * 200, b"\xff"),))
    print_comparisons("v1", "v2", {"spend": found})
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["spend", "key", "1000", "0", "0", "1"]
    assert lines[-1].split() == ["spend", "different", "k", "x" * 59 + "…", "\\xff"]


@dataclass(slots=True)
class _Begun:
    """A version that has passed 30 of 40 pointers."""

    version: str = "v2"
    finished: bool = False
    catching_up: Any = field(default_factory=lambda: SimpleNamespace(total=40, done=30))
    pipeline: Any = field(default_factory=lambda: SimpleNamespace(name="usage", progress=_progress))


def _progress() -> dict[str, QueryProgress]:
    return {"q": QueryProgress("q", rows_per_s=1200)}


def test_a_bar_shows_how_far_a_version_is_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    watch = Watch()
    watch.begun.append(_Begun())  # type: ignore[arg-type]
    with watch.shown():
        pass
    shown = screen.getvalue()
    assert "usage v2" in shown
    assert "30/40" in shown
    assert "1,200/s" in shown
